"""NVIDIA GPUs as NVML shows them: no compute context is created."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from hal.common.contract.arch import read_archs
from hal.common.vendor.probing import (
    Findings,
    Found,
    Row,
    check_count,
    number_rows,
    parse_visible,
    place_rows,
    read_running_torch,
    tell_unopened,
)

DRIVER_FILES = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


def probe() -> Found:
    """One row per visible GPU in the order torch numbers them, and sentences on what was looked for."""
    findings = Findings()
    running = findings.attempt("torch.cuda", lambda: read_running_torch("cuda", "cuda"))
    if running is not None:
        findings.add("torch runs on these devices already")
        rows = [_describe(f"sm_{one.major}{one.minor}", str(one.name), int(one.total_memory), findings) for one in running]
        return place_rows(number_rows(rows), "cuda", "cuda", findings), findings.sentences
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
        visible, is_numbered = _read_devices(nvml, findings)
    finally:
        findings.attempt("NVML shutdown", nvml.nvmlShutdown)
    placed = place_rows(visible, "cuda", "cuda", findings)
    return placed if is_numbered else [{**row, "torch_device": None} for row in placed], findings.sentences


def _import_nvml() -> Any:
    import pynvml

    return pynvml


def _count_driver_files(findings: Findings) -> None:
    tell_unopened("cuda", "cuda", findings)
    count = len(list(DRIVER_FILES.iterdir())) if DRIVER_FILES.is_dir() else 0
    if count:
        findings.add(f"the driver lists {count} GPUs; install nvidia-ml-py so that their archs can be read")


def _read_devices(nvml: Any, findings: Findings) -> tuple[list[Row], bool]:
    """The visible devices, and whether their order is torch's."""
    count = findings.attempt("counting devices", lambda: check_count("NVML", nvml.nvmlDeviceGetCount())) or 0
    if not count:
        findings.add("NVML lists no device")
    value = os.environ.get(VISIBLE)
    if value is not None and value.strip().startswith("MIG-"):
        return number_rows([_read_slice(nvml, value, findings)]), True
    handles = [findings.attempt(f"device {i}", partial(nvml.nvmlDeviceGetHandleByIndex, i)) for i in range(count)]
    archs = [_read_arch(nvml, handle, index, findings) for index, handle in enumerate(handles)]
    identifiers = [_read_text(nvml.nvmlDeviceGetUUID, handle, findings) for handle in handles]
    visible = _visible(identifiers, findings)
    divided = {index for index in visible if _is_divided(nvml, handles[index])}
    rows = [None if i in divided else _read_device(nvml, handles[i], archs[i], findings) for i in visible]
    for index in sorted(divided):
        findings.add(
            f"device {index} is divided by MIG, and NVML's list does not say which part torch would use: left out; name one in "
            f"{VISIBLE}"
        )
    is_mixed = len(set(archs)) > 1 and os.environ.get(ORDER) != "PCI_BUS_ID" and not (value or "").strip().startswith("GPU-")
    if is_mixed:
        findings.add(
            f"the devices differ in arch ({', '.join(sorted(filter(None, archs)))}), and torch numbers the fastest first where "
            f"{ORDER} is not PCI_BUS_ID: set it, so that a number means one device"
        )
    return number_rows(rows), not is_mixed and not divided


def _read_slice(nvml: Any, value: str, findings: Findings) -> Row | None:
    """The part of a device that a list of parts leaves visible: a process sees one, the first."""
    name, comma, _ = value.partition(",")
    part = findings.attempt(f"{VISIBLE}={name}", lambda: nvml.nvmlDeviceGetHandleByUUID(name.strip()))
    if part is None:
        return None
    if comma:
        findings.add(f"{VISIBLE} names several parts of devices and a process sees one: {name.strip()}")
    # A part has memory and a name of its own, and its device's capability.
    device = findings.attempt(f"the device of {name}", lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part))
    arch = _read_arch(nvml, device, 0, findings)
    return _describe(arch, _read_text(nvml.nvmlDeviceGetName, part, findings), _read_memory(nvml, part, findings), findings)


def _visible(identifiers: list[str], findings: Findings) -> list[int]:
    value = os.environ.get(VISIBLE)
    if value is None:
        return list(range(len(identifiers)))
    chosen, remark = parse_visible(value, identifiers)
    if remark:
        findings.add(f"{VISIBLE}: {remark}")
    return chosen


def _is_divided(nvml: Any, handle: Any) -> bool:
    # Devices that know no MIG raise here, which says as much.
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == 1)
    except Exception:  # noqa: BLE001
        return False


def _read_device(nvml: Any, handle: Any, arch: str | None, findings: Findings) -> Row | None:
    if arch is None:
        return None
    return _describe(arch, _read_text(nvml.nvmlDeviceGetName, handle, findings), _read_memory(nvml, handle, findings), findings)


def _describe(arch: str | None, name: str, memory_bytes: int | None, findings: Findings) -> Row | None:
    known = {row.name: row for row in read_archs("hal.cuda")}
    if arch not in known:
        findings.add(f"{name or 'a device'} is of arch {arch or 'unknown'}, which is not in the table: {', '.join(known)}")
        return None
    row = known[arch]
    return {"arch": arch, "name": name or row.sample_part, "memory_bytes": memory_bytes, "fp8": row.fp8}


def _read_arch(nvml: Any, handle: Any, index: int, findings: Findings) -> str | None:
    if handle is None:
        return None
    what = f"device {index}'s capability"
    capability = findings.attempt(what, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return None if capability is None else "sm_{}{}".format(*capability)


def _read_memory(nvml: Any, handle: Any, findings: Findings) -> int | None:
    return findings.attempt("memory of a device", lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total))


def _read_text(read: Any, handle: Any, findings: Findings) -> str:
    value = findings.attempt(getattr(read, "__name__", "NVML"), lambda: read(handle)) if handle is not None else None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
