"""NVIDIA GPUs as NVML shows them: no compute context is created."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from hal.common.arch import read_archs
from hal.common.vendor.probing import Findings, Found, Row, parse_visible, place_rows, probe_quietly

DRIVER_FILES = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def probe() -> Found:
    """One row per visible GPU in the order torch numbers them, and sentences on what was looked for; never raises."""
    return probe_quietly(_look, "NVML")


def _look() -> Found:
    findings = Findings()
    nvml = findings.attempt("NVML", _import_nvml)
    if nvml is None:
        _count_driver_files(findings)
        return [], findings.sentences
    try:
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - without a driver NVML raises one of a dozen classes
        findings.add(f"NVML: {type(error).__name__}: {error}")
        _count_driver_files(findings)
        return [], findings.sentences
    try:
        rows = _read_devices(nvml, findings)
    finally:
        findings.attempt("NVML shutdown", nvml.nvmlShutdown)
    return place_rows(rows, "cuda", "cuda", findings), findings.sentences


def _import_nvml() -> Any:
    import pynvml

    return pynvml


def _count_driver_files(findings: Findings) -> None:
    count = len(list(DRIVER_FILES.iterdir())) if DRIVER_FILES.is_dir() else 0
    if count:
        findings.add(f"the driver lists {count} GPUs; install nvidia-ml-py so that their archs can be read")


def _read_devices(nvml: Any, findings: Findings) -> list[Row]:
    count = findings.attempt("counting devices", nvml.nvmlDeviceGetCount) or 0
    if not count:
        findings.add("NVML lists no device")
    handles = [findings.attempt(f"device {i}", partial(nvml.nvmlDeviceGetHandleByIndex, i)) for i in range(count)]
    identifiers = [_read_text(nvml.nvmlDeviceGetUUID, handle, findings) for handle in handles]
    rows = []
    for index in _visible(identifiers, findings):
        row = _read_device(nvml, index, handles[index], findings) if handles[index] is not None else None
        if row is not None:
            rows.append(row)
    return rows


def _visible(identifiers: list[str], findings: Findings) -> list[int]:
    value = os.environ.get(VISIBLE)
    if value is None:
        return list(range(len(identifiers)))
    if "MIG-" in value:
        findings.add(f"{VISIBLE}={value} names parts of devices, which NVML's list does not tell apart: unknown")
        return []
    chosen, remark = parse_visible(value, identifiers)
    if remark:
        findings.add(f"{VISIBLE}: {remark}")
    return chosen


def _read_device(nvml: Any, index: int, handle: Any, findings: Findings) -> Row | None:
    # Devices that know no MIG raise here, which says as much.
    try:
        is_divided = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
    except Exception:  # noqa: BLE001
        is_divided = False
    if is_divided:
        findings.add(f"device {index} is divided by MIG, and NVML's list does not say which part torch would use: left out")
        return None
    capability = findings.attempt(f"device {index}'s capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    if capability is None:
        return None
    arch = "sm_{}{}".format(*capability)
    known = {row.name: row for row in read_archs("hal.cuda")}
    if arch not in known:
        findings.add(f"device {index} is of arch {arch}, which is not in the table: {', '.join(known)}")
        return None
    memory = findings.attempt(f"device {index}'s memory", lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total))
    name = _read_text(nvml.nvmlDeviceGetName, handle, findings)
    return {"arch": arch, "name": name or known[arch].sample_part, "memory_bytes": memory, "fp8": known[arch].fp8}


def _read_text(read: Any, handle: Any, findings: Findings) -> str:
    value = findings.attempt(getattr(read, "__name__", "NVML"), lambda: read(handle)) if handle is not None else None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
