"""Intel GPUs by way of Sysman, a running torch and the kernel driver's files."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, c_char, c_uint32, c_uint64, c_void_p
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hal.xpu.probe import probe

from .helpers.fakes import GIB, make_torch

Install = Callable[..., None]
MAX_1550, B60, LUNAR_LAKE = 0x0BD5, 0xE211, 0x64A0


def make_pyzes(*devices: tuple[int, int], init: int = 0) -> ModuleType:
    """Sysman with some devices: (device id, parts)."""

    class Core(Structure):
        _fields_ = (("deviceId", c_uint32), ("name", c_char * 32))

    class Memory(Structure):
        _fields_ = (("stype", c_uint32), ("onSubdevice", c_uint32), ("subdeviceId", c_uint32))

    class State(Structure):
        _fields_ = (("stype", c_uint32), ("size", c_uint64))

    class Properties(Structure):
        _fields_ = (("stype", c_uint32), ("pNext", c_void_p), ("core", Core), ("numSubdevices", c_uint32))

    def drivers(count, handles):
        count._obj.value = 1
        return 0

    def list_devices(driver, count, handles):
        count._obj.value = len(devices)
        if handles is not None:
            for index in range(len(devices)):
                handles[index] = index + 1
        return 0

    def properties(handle, given):
        device_id, parts = devices[handle - 1]
        given._obj.core.deviceId, given._obj.core.name, given._obj.numSubdevices = device_id, b"Intel GPU", parts
        return 0

    def list_memories(device, count, handles):
        parts = devices[device - 1][1]
        count._obj.value = max(parts, 1)
        for index in range(max(parts, 1) if handles is not None else 0):
            handles[index] = 10 * device + index + 1
        return 0

    def describe_memory(handle, given):
        given._obj.onSubdevice, given._obj.subdeviceId = devices[handle // 10 - 1][1] > 0, handle % 10 - 1
        return 0

    def measure_memory(handle, given):
        given._obj.size = (handle % 10) * GIB
        return 0

    module = ModuleType("pyzes")
    module.zes_mem_handle_t, module.zes_mem_properties_t, module.zes_mem_state_t = c_void_p, Memory, State
    module.ZES_STRUCTURE_TYPE_MEM_PROPERTIES, module.ZES_STRUCTURE_TYPE_MEM_STATE = 2, 3
    module.zesDeviceEnumMemoryModules, module.zesMemoryGetProperties = list_memories, describe_memory
    module.zesMemoryGetState = measure_memory
    module.ZE_RESULT_SUCCESS, module.ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES = 0, 1
    module.zes_driver_handle_t, module.zes_device_handle_t = c_void_p, c_void_p
    module.zes_device_properties_t = Properties
    module.zesInit = lambda _flags: init
    module.zesDriverGet, module.zesDeviceGet, module.zesDeviceGetProperties = drivers, list_devices, properties
    return module


@pytest.fixture
def cards(tmp_path: Path) -> Callable[..., None]:
    """Cards of the kernel driver: (vendor, device id)."""

    def write(*devices: tuple[int, int]) -> None:
        for index, (vendor, device_id) in enumerate(devices):
            folder = tmp_path / "drm" / f"card{index}" / "device"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor:#06x}\n")
            (folder / "device").write_text(f"{device_id:#06x}\n")

    return write


def test_connectors_are_no_cards(cards: Callable[..., None], install: Install, tmp_path: Path) -> None:
    cards((0x8086, 0xE20B))
    (tmp_path / "drm" / "card0-DP-1").symlink_to(tmp_path / "drm" / "card0", target_is_directory=True)
    install(torch=make_torch(xpu="2025.2"))
    assert [row["arch"] for row in probe()[0]] == ["bmg"]


def test_parts_of_a_device_count_on_their_own(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(pyzes=make_pyzes((MAX_1550, 2)), torch=make_torch(xpu="2025.2"))
    rows, findings = probe()
    assert [(row["torch_device"], row["memory_bytes"]) for row in rows] == [("xpu:0", GIB), ("xpu:1", 2 * GIB)]
    assert findings == []
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    assert [row["memory_bytes"] for row in probe()[0]] == [3 * GIB]


def test_memory_that_cannot_be_read_is_unknown(install: Install) -> None:
    pyzes = make_pyzes((B60, 0))
    pyzes.zesMemoryGetState = lambda *_: 0x78000003
    install(pyzes=pyzes, torch=make_torch(xpu="2025.2"))
    (row,), findings = probe()
    assert (row["arch"], row["memory_bytes"]) == ("bmg", None)
    assert "zesMemoryGetState returned 0x78000003" in findings[0]


def test_integrated_device_gives_way_to_another(install: Install) -> None:
    install(pyzes=make_pyzes((LUNAR_LAKE, 0), (B60, 0)), torch=make_torch(xpu="2025.2"))
    rows, findings = probe()
    assert [row["arch"] for row in rows] == ["bmg"]
    assert "integrated" in findings[0]
    install(pyzes=make_pyzes((LUNAR_LAKE, 0)))
    assert [row["arch"] for row in probe()[0]] == ["lnl"]


@pytest.mark.parametrize(("mask", "archs"), [("1", ["bmg"]), ("1,0", ["pvc", "bmg"]), ("0.1", []), ("", []), ("9", [])])
def test_intel_devices_outside_the_affinity_mask_are_left_out(
    install: Install, monkeypatch: pytest.MonkeyPatch, mask: str, archs: list[str]
) -> None:
    install(pyzes=make_pyzes((MAX_1550, 0), (B60, 0)), torch=make_torch(xpu="2025.2"))
    monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    rows, findings = probe()
    assert [row["arch"] for row in rows] == archs
    assert bool(findings) == (not archs)


def test_selector_is_told_and_not_followed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(pyzes=make_pyzes((B60, 0)), torch=make_torch(xpu="2025.2"))
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "level_zero:1")
    rows, findings = probe()
    assert len(rows) == 1
    assert "ONEAPI_DEVICE_SELECTOR" in findings[0]


def test_cards_where_the_library_is_absent(cards: Callable[..., None], install: Install) -> None:
    cards((0x10DE, 0x2330), (0x8086, MAX_1550), (0x8086, 0x1234))
    install(torch=make_torch(xpu="2025.2"))
    rows, findings = probe()
    assert [(row["arch"], row["name"]) for row in rows] == [("pvc", "Data Center GPU Max 1550, one stack")]
    assert any("0x1234" in finding for finding in findings)
    assert any("two stacks" in finding for finding in findings)


def test_torch_without_xpu_leaves_devices_for_planning(cards: Callable[..., None], install: Install) -> None:
    cards((0x8086, B60))
    install(torch=make_torch())
    rows, findings = probe()
    assert [row["torch_device"] for row in rows] == [None]
    assert "built without xpu" in findings[-1]


def test_running_torch_is_asked_and_one_that_is_not_is_left_alone(install: Install) -> None:
    opened = SimpleNamespace(device_id=MAX_1550, name="Max 1550", total_memory=2**36)
    install(torch=make_torch(xpu="2025.2"), pyzes=make_pyzes((B60, 0)))
    assert [row["arch"] for row in probe()[0]] == ["bmg"]
    install(torch=make_torch(xpu="2025.2", running={"xpu": [opened]}))
    assert [(row["arch"], row["memory_bytes"]) for row in probe()[0]] == [("pvc", 2**36)]


def test_an_intel_device_of_an_unknown_arch_keeps_its_number(install: Install) -> None:
    install(pyzes=make_pyzes((0x1234, 0), (B60, 0)), torch=make_torch(xpu="2025.2"))
    rows, findings = probe()
    assert [(row["arch"], row["torch_device"]) for row in rows] == [("bmg", "xpu:1")]
    assert "0x1234" in findings[0]


@pytest.mark.parametrize("error", [OSError("libze_loader.so.1"), KeyError("ze"), RuntimeError("driver")])
def test_errors_of_import_are_findings(raise_on_import: Callable[[str, BaseException], None], error: Exception) -> None:
    raise_on_import("pyzes", error)
    rows, findings = probe()
    assert rows == []
    assert findings[0] == f"Level Zero Sysman: {type(error).__name__}: {error}"


def test_refused_init_falls_back_to_cards(cards: Callable[..., None], install: Install) -> None:
    cards((0x8086, B60))
    install(pyzes=make_pyzes(init=0x78000001), torch=make_torch(xpu="2025.2"))
    rows, findings = probe()
    assert [row["arch"] for row in rows] == ["bmg"]
    assert "zesInit returned 0x78000001" in findings[0]
