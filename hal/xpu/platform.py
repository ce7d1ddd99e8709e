"""Intel GPUs as a platform."""

from __future__ import annotations

from hal.common.contract.platform import Platform

PLATFORM = Platform(
    name="xpu",
    package="hal.xpu",
    backends=("hal.xpu.vllm_kernels:VLLMKernels", "hal.xpu.ipex:IPEX", "hal.xpu.portable:XPUTriton"),
    probe_path="hal.xpu.probe:probe",
    torch_type="xpu",
)
