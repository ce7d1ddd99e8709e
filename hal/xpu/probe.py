"""Intel GPUs as Sysman, a torch that already runs, or the kernel's files show them: no compute context is created."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from ctypes import byref, c_uint32
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from hal.common.arch import read_archs
from hal.common.vendor.probing import Findings, Found, Row, parse_visible, place_rows, probe_quietly

CARDS = Path("/sys/class/drm")
VENDOR = 0x8086
AFFINITY = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
SELECTOR = "ONEAPI_DEVICE_SELECTOR"


def probe() -> Found:
    """One row per visible GPU, and sentences on what was looked for; never raises."""
    return probe_quietly(_look, "Intel devices")


def _look() -> Found:
    findings = Findings()
    sources: tuple[tuple[str, Callable[[Findings], list[Row] | None]], ...] = (
        ("torch.xpu", _read_running_torch),
        ("Level Zero Sysman", _read_sysman),
        ("the kernel driver's cards", _read_cards),
    )
    rows: list[Row] | None = None
    for what, read in sources:
        rows = findings.attempt(what, partial(read, findings))
        if rows is not None:
            break
    found = rows or []
    # What torch lists is filtered already; its own numbering holds.
    visible = found if _torch_runs() else [found[index] for index in _visible(found, findings)]
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


def _known(rows: list[Row], findings: Findings) -> list[Row]:
    """Rows of the table's archs; integrated parts only where nothing else is there, as torch has it."""
    data = tomllib.loads(files("hal.xpu").joinpath("devices.toml").read_text(encoding="utf-8"))
    arch_of = {device_id: arch for arch, ids in data.items() if arch != "integrated" for device_id in ids}
    archs = {row.name: row for row in read_archs("hal.xpu")}
    known = []
    for row in rows:
        arch = arch_of.get(row["device_id"])
        if arch is None:
            findings.add(f"the device {row['device_id']:#06x} ({row['name'] or 'unnamed'}) is of no arch in the table")
            continue
        name = row["name"] or archs[arch].sample_part
        known.append({**row, "arch": arch, "name": name, "fp8": archs[arch].fp8})
    discrete = [row for row in known if row["arch"] not in data["integrated"]]
    if discrete and len(discrete) < len(known):
        findings.add("the integrated GPU is left out, since there is another")
    return discrete or known


def _torch_runs() -> bool:
    xpu = getattr(sys.modules.get("torch"), "xpu", None)
    return bool(xpu is not None and hasattr(xpu, "is_initialized") and xpu.is_initialized())


def _read_running_torch(findings: Findings) -> list[Row] | None:
    """None unless torch has opened the devices already: asking it first would."""
    if not _torch_runs():
        return None
    findings.add("torch runs on these devices already")
    xpu = sys.modules["torch"].xpu
    properties = [xpu.get_device_properties(index) for index in range(xpu.device_count())]
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
        row = {"device_id": int(properties.core.deviceId), "name": _text(properties.core.name), "memory_bytes": None}
        is_split = properties.numSubdevices > 0 and os.environ.get(HIERARCHY, "FLAT") != "COMPOSITE"
        rows += [row] * (properties.numSubdevices if is_split else 1)
    return rows


def _list_handles(pyzes: Any, kind: Any, read: Any, *parent: Any) -> list[Any]:
    count = c_uint32(0)
    _check(pyzes, read(*parent, byref(count), None), read.__name__)
    handles = (kind * count.value)()
    if count.value:
        _check(pyzes, read(*parent, byref(count), handles), read.__name__)
    return list(handles)


def _check(pyzes: Any, code: int, what: str) -> None:
    if code != pyzes.ZE_RESULT_SUCCESS:
        raise RuntimeError(f"{what} returned {code:#x}")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _read_cards(findings: Findings) -> list[Row]:
    cards = sorted(CARDS.glob("card[0-9]*"), key=lambda card: (len(card.name), card.name)) if CARDS.is_dir() else []
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
