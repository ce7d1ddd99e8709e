"""Intel GPUs as Sysman, a torch that already runs, or the kernel's files show them: no compute context is created."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from ctypes import byref, c_uint32
from functools import partial
from importlib import import_module
from importlib.resources import files
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

CARDS = Path("/sys/class/drm")
VENDOR = 0x8086
AFFINITY = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
SELECTOR = "ONEAPI_DEVICE_SELECTOR"


def probe() -> Found:
    """One row per visible GPU, and sentences on what was looked for."""
    findings = Findings()
    running = findings.attempt("torch.xpu", _read_running_torch)
    if running is not None:
        findings.add("torch runs on these devices already")
        return _finish(running, findings)
    sources: tuple[tuple[str, Callable[[Findings], list[Row] | None]], ...] = (
        ("Level Zero Sysman", _read_sysman),
        ("the kernel driver's cards", _read_cards),
    )
    rows: list[Row] | None = None
    for what, read in sources:
        rows = findings.attempt(what, partial(read, findings))
        if rows is not None:
            break
    found = rows or []
    if not found:
        tell_unopened("xpu", "xpu", findings)
    return _finish(_drop_integrated([found[index] for index in _visible(found, findings)], findings), findings)


def _finish(visible: list[Row], findings: Findings) -> Found:
    placed = place_rows(_known(visible, findings), "xpu", "xpu", findings)
    return [{key: value for key, value in row.items() if key != "device_id"} for row in placed], findings.sentences


def _visible(rows: list[Row], findings: Findings) -> list[int]:
    if SELECTOR in os.environ:
        findings.add(f"{SELECTOR}={os.environ[SELECTOR]} filters devices where they are opened, which is not followed here")
    value = os.environ.get(AFFINITY)
    if value is None or not rows:
        return list(range(len(rows)))
    if "." in value:
        findings.add(f"{AFFINITY}={value} names parts of devices: which of them torch would use is unknown")
        return []
    chosen, remark = parse_visible(value, ["" for _ in rows])
    if remark:
        findings.add(f"{AFFINITY}: {remark}")
    return sorted(chosen)


def _read_ids() -> tuple[dict[int, str], set[int]]:
    """The arch of each device id, and the ids of integrated parts."""
    data = tomllib.loads(files("hal.xpu").joinpath("devices.toml").read_text(encoding="utf-8"))
    arch_of = {device_id: arch for arch, ids in data.items() if arch != "integrated" for device_id in ids}
    return arch_of, {device_id for device_id, arch in arch_of.items() if arch in data["integrated"]}


def _drop_integrated(rows: list[Row], findings: Findings) -> list[Row]:
    """Integrated parts only where nothing else is there, as torch has it."""
    _, integrated = _read_ids()
    counted = [row for row in rows if row["device_id"] not in integrated] or rows
    if len(counted) < len(rows):
        findings.add("the integrated GPU is left out, since there is another")
    return counted


def _known(rows: list[Row], findings: Findings) -> list[Row]:
    arch_of, _ = _read_ids()
    archs = {row.name: row for row in read_archs("hal.xpu")}
    known: list[Row | None] = []
    for row in rows:
        arch = arch_of.get(row["device_id"])
        if arch is None:
            findings.add(f"the device {row['device_id']:#06x} ({row['name'] or 'unnamed'}) is of no arch in the table")
            known.append(None)
        else:
            known.append({**row, "arch": arch, "name": row["name"] or archs[arch].sample_part, "fp8": archs[arch].fp8})
    return number_rows(known)


def _read_running_torch() -> list[Row] | None:
    properties = read_running_torch("xpu", "xpu")
    if properties is None:
        return None
    # Older releases of torch lack some of these.
    return [
        {
            "device_id": int(getattr(one, "device_id", 0)),
            "name": str(getattr(one, "name", "")),
            "memory_bytes": getattr(one, "total_memory", None),
        }
        for one in properties
    ]


def _read_sysman(findings: Findings) -> list[Row] | None:
    """None where the library is not there; a part of a device counts on its own unless the hierarchy says otherwise."""
    try:
        pyzes = import_module("pyzes")
    except Exception as error:  # noqa: BLE001 - it raises OSError without the loader
        findings.add(f"Level Zero Sysman: {type(error).__name__}: {error}")
        return None
    _check(pyzes, pyzes.zesInit(0), "zesInit")
    drivers = _list_handles(pyzes, pyzes.zes_driver_handle_t, pyzes.zesDriverGet)
    rows: list[Row] = []
    for handle in _list_handles(pyzes, pyzes.zes_device_handle_t, pyzes.zesDeviceGet, drivers[0]) if drivers else ():
        properties = pyzes.zes_device_properties_t()
        properties.stype = pyzes.ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES
        _check(pyzes, pyzes.zesDeviceGetProperties(handle, byref(properties)), "zesDeviceGetProperties")
        row = {"device_id": int(properties.core.deviceId), "name": _text(properties.core.name)}
        modules = findings.attempt("memory of a device", partial(_read_modules, pyzes, handle)) or []
        is_split = properties.numSubdevices > 0 and os.environ.get(HIERARCHY, "FLAT") != "COMPOSITE"
        parts = (
            [[size for part, size in modules if part in (None, index)] for index in range(properties.numSubdevices)]
            if is_split
            else [[size for _, size in modules]]
        )
        rows += [{**row, "memory_bytes": sum(sizes) or None} for sizes in parts]
    return rows


def _read_modules(pyzes: Any, device: Any) -> list[tuple[int | None, int]]:
    """A device's memories: the part that each belongs to, None for the whole device's, and its bytes."""
    modules = []
    for memory in _list_handles(pyzes, pyzes.zes_mem_handle_t, pyzes.zesDeviceEnumMemoryModules, device):
        properties, state = pyzes.zes_mem_properties_t(), pyzes.zes_mem_state_t()
        properties.stype, state.stype = pyzes.ZES_STRUCTURE_TYPE_MEM_PROPERTIES, pyzes.ZES_STRUCTURE_TYPE_MEM_STATE
        _check(pyzes, pyzes.zesMemoryGetProperties(memory, byref(properties)), "zesMemoryGetProperties")
        _check(pyzes, pyzes.zesMemoryGetState(memory, byref(state)), "zesMemoryGetState")
        modules.append((int(properties.subdeviceId) if properties.onSubdevice else None, int(state.size)))
    return modules


def _list_handles(pyzes: Any, kind: Any, read: Any, *parent: Any) -> list[Any]:
    count = c_uint32(0)
    _check(pyzes, read(*parent, byref(count), None), read.__name__)
    handles = (kind * check_count(read.__name__, count.value))()
    if count.value:
        _check(pyzes, read(*parent, byref(count), handles), read.__name__)
    return list(handles)


def _check(pyzes: Any, code: int, what: str) -> None:
    if code != pyzes.ZE_RESULT_SUCCESS:
        raise RuntimeError(f"{what} returned {code:#x}")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _read_cards(findings: Findings) -> list[Row]:
    # A card's connectors lie beside it, as card0-DP-1.
    found = [card for card in CARDS.glob("card[0-9]*") if card.name[4:].isdecimal()] if CARDS.is_dir() else []
    cards = sorted(found, key=lambda card: int(card.name[4:]))
    rows = []
    for card in (card for card in cards if (card / "device" / "vendor").is_file()):
        vendor = findings.attempt(card.name, partial(_read_number, card / "device" / "vendor"))
        if vendor != VENDOR:
            continue
        device_id = findings.attempt(card.name, partial(_read_number, card / "device" / "device"))
        if device_id is not None:
            rows.append({"device_id": device_id, "name": "", "memory_bytes": _read_memory(card)})
    if rows:
        findings.add("counted by cards: a card with two stacks is two devices to torch, install pyzes to tell them apart")
    else:
        findings.add(f"{CARDS} has no Intel card")
    return rows


def _read_memory(card: Path) -> int | None:
    path = card / "lmem_total_bytes"
    try:
        return _read_number(path) or None
    except (OSError, ValueError):
        return None


def _read_number(path: Path) -> int:
    return int(path.read_text(encoding="utf-8").strip(), 0)
