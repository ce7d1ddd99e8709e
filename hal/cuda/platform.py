"""NVIDIA GPUs as a platform."""

from __future__ import annotations

from hal.common.contract.platform import Platform

PLATFORM = Platform(
    name="cuda",
    package="hal.cuda",
    backends=(
        "hal.cuda.flash_attention:FlashAttention",
        "hal.cuda.flash_mla:FlashMLA",
        "hal.cuda.flashinfer:FlashInfer",
        "hal.cuda.portable:CUDATriton",
    ),
    probe_path="hal.cuda.probe:probe",
    torch_type="cuda",
)
