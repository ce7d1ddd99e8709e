"""The CPU as a platform: the embedded default and the reference."""

from __future__ import annotations

from hal.common.contract.platform import Platform

PLATFORM = Platform(
    name="cpu",
    package="hal.cpu",
    backends=("hal.cpu.backend:CPUBackend",),
    probe_path="hal.cpu.probe:probe",
    torch_type="cpu",
    always_present=True,
)
