"""AMD GPUs; torch calls their device type cuda as a platform."""

from __future__ import annotations

from hal.common.contract.platform import Platform

PLATFORM = Platform(
    name="rocm",
    package="hal.rocm",
    backends=("hal.rocm.aiter:Aiter", "hal.rocm.portable:ROCmTriton"),
    probe_path="hal.rocm.probe:probe",
    torch_type="cuda",
)
