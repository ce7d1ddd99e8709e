"""AMD GPUs by way of the kernel driver's files, amdsmi and pyrsmi."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import hal
from hal.rocm.probe import name_target, probe

from .helpers.fakes import GIB, ROCMLError_LibraryNotFound, make_amdsmi, make_pyrsmi, make_torch

Install = Callable[..., None]


@pytest.fixture
def topology(tmp_path: Path) -> Callable[..., None]:
    """Nodes of the kernel driver: a processor, then GPUs by packed version."""

    def write(*versions: int) -> None:
        for node, version in enumerate((0, *versions)):
            folder = tmp_path / "kfd" / str(node)
            (folder / "mem_banks" / "0").mkdir(parents=True)
            lines = {"simd_count": 304 if version else 0, "gfx_target_version": version, "unique_id": node}
            (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
            (folder / "mem_banks" / "0" / "properties").write_text(f"size_in_bytes {node * GIB}\n")

    return write


@pytest.mark.parametrize(
    ("version", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")]
)
def test_a_packed_version_is_an_arch(version: int, name: str) -> None:
    assert name_target(version) == name


def test_amd_devices_are_found_by_topology_alone(topology: Callable[..., None], install: Install) -> None:
    topology(90402, 120001)
    install(torch=make_torch(hip="7.0"))
    rows, findings = probe()
    assert [(row["arch"], row["fp8"], row["memory_bytes"], row["torch_device"]) for row in rows] == [
        ("gfx942", "e4m3fnuz", GIB, "cuda:0"),
        ("gfx1201", "e4m3fn", 2 * GIB, "cuda:1"),
    ]
    assert findings == []
    assert set(rows[0]) == {"arch", "name", "memory_bytes", "fp8", "index", "torch_device"}


def test_torch_for_another_vendor_leaves_devices_for_planning(topology: Callable[..., None], install: Install) -> None:
    topology(90402)
    install(torch=make_torch(cuda="12.9"))
    rows, findings = probe()
    assert [row["torch_device"] for row in rows] == [None]
    assert "built without hip" in findings[0]


@pytest.mark.parametrize(
    ("rocr", "hip", "archs"),
    [
        ("1", None, ["gfx1201"]),
        (None, "1,0", ["gfx1201", "gfx942"]),
        ("1", "0", ["gfx1201"]),
        ("1", "1", []),
        ("GPU-0000000000000002", None, ["gfx1201"]),
        ("", None, []),
    ],
)
def test_hidden_amd_devices_are_left_out(
    topology: Callable[..., None],
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    rocr: str | None,
    hip: str | None,
    archs: list[str],
) -> None:
    topology(90402, 120001)
    install(torch=make_torch(hip="7.0"))
    for name, value in (("ROCR_VISIBLE_DEVICES", rocr), ("HIP_VISIBLE_DEVICES", hip)):
        if value is not None:
            monkeypatch.setenv(name, value)
    rows, findings = probe()
    assert [row["arch"] for row in rows] == archs
    assert any("filtered twice" in finding for finding in findings) == (rocr is not None and hip is not None)


def test_alias_is_told_and_not_followed(topology: Callable[..., None], install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    topology(90402, 120001)
    install(torch=make_torch(hip="7.0"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    rows, findings = probe()
    assert len(rows) == 2
    assert "CUDA_VISIBLE_DEVICES is set" in findings[0]


def test_amdsmi_where_the_driver_shows_no_files(install: Install) -> None:
    install(amdsmi=make_amdsmi("gfx950:sramecc+", "gfx1030"), torch=make_torch(hip="7.0"))
    rows, findings = probe()
    assert [(row["arch"], row["name"], row["memory_bytes"]) for row in rows] == [("gfx950", "Card 0", GIB)]
    assert any("gfx1030, which is not in the table" in finding for finding in findings)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("AMD Instinct MI300X OAM", "gfx942"),
        ("AMD Instinct MI250X / MI250", "gfx90a"),
        ("Aqua Vanjaram [Instinct MI325X]", "gfx942"),
        ("Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]", "gfx1100"),
        ("AMD Radeon RX 9070 XT", "gfx1201"),
        ("MI355X", "gfx950"),
    ],
)
def test_pyrsmi_alone_detects_a_device_by_its_name(name: str, arch: str, install: Install) -> None:
    install(**make_pyrsmi((name, 192 * GIB)), torch=make_torch(hip="7.0"))
    (row,), findings = probe()
    assert (row["arch"], row["name"], row["memory_bytes"], row["torch_device"]) == (arch, name, 192 * GIB, "cuda:0")
    assert not any(finding.startswith("pyrsmi") for finding in findings)
    # What the probe found is a device of the machine.
    devices = [device for device in hal.detect() if device.platform == "rocm"]
    assert [(device.target, device.present) for device in devices] == [(f"rocm:{arch}", True)]


def test_pyrsmi_leaves_out_what_it_cannot_name_and_counts_it(install: Install) -> None:
    install(**make_pyrsmi("Instinct MI100", "", ("Instinct MI210", -1)), torch=make_torch(hip="7.0"))
    (row,), findings = probe()
    assert (row["arch"], row["memory_bytes"], row["torch_device"]) == ("gfx90a", None, "cuda:2")
    assert [finding for finding in findings if "no part in the arch table" in finding] == [
        "pyrsmi names a device 'Instinct MI100', which is no part in the arch table: nothing can be planned for it",
        "pyrsmi names a device '', which is no part in the arch table: nothing can be planned for it",
    ]


def test_pyrsmi_is_filtered_by_number(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(**make_pyrsmi("MI210", "MI300X"))
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert [row["arch"] for row in probe()[0]] == ["gfx942"]


def test_what_pyrsmi_logs_is_not_seen_and_sets_nothing_up(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = logging.getLogger().handlers
    kept, handlers[:] = list(handlers), []
    try:
        install(**make_pyrsmi("", ("MI300X", -1)))
        assert len(probe()[0]) == 1
        assert handlers == []
    finally:
        handlers[:] = kept
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("count", [-1, "2", 10**9], ids=str)
def test_a_count_of_pyrsmi_that_is_none_is_a_finding(count: object, install: Install) -> None:
    install(**make_pyrsmi("MI300X", count=count))
    rows, findings = probe()
    assert rows == []
    assert f"pyrsmi: RuntimeError: pyrsmi counts {count!r}" in findings


def test_getters_and_a_shutdown_that_raise_cost_what_they_were_asked(install: Install) -> None:
    modules = make_pyrsmi("MI300X")

    def fail(*_: object) -> object:
        raise AttributeError("'NoneType' object has no attribute 'amdsmi_get_gpu_memory_total'")

    modules["pyrsmi.rocml"].smi_get_device_memory_total = fail
    modules["pyrsmi.rocml"].smi_shutdown = fail
    install(**modules)
    (row,), findings = probe()
    assert (row["arch"], row["memory_bytes"]) == ("gfx942", None)
    assert any(finding.startswith("pyrsmi: the memory of device 0: AttributeError") for finding in findings)
    assert any(finding.startswith("pyrsmi shutdown: AttributeError") for finding in findings)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("libamd_smi.so"),
        RuntimeError("amdgpu is not loaded"),
        OSError("gone"),
        ROCMLError_LibraryNotFound("librocm_smi64.so"),
        AttributeError("amdsmi_init"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_odd_errors_are_findings(
    install: Install,
    raise_on_import: Callable[[str, BaseException], None],
    error: Exception,
) -> None:
    raise_on_import("amdsmi", error)
    install(**make_pyrsmi(error=error))
    rows, findings = probe()
    text = f"{type(error).__name__}: {error}"
    assert rows == []
    assert f"amdsmi: {text}" in findings
    assert f"pyrsmi: {text}" in findings


def test_a_torch_that_runs_is_asked_for_its_amd_devices(install: Install, topology: Callable[..., None]) -> None:
    topology(90402)
    opened = SimpleNamespace(gcnArchName="gfx90a:sramecc+:xnack-", name="MI210", total_memory=GIB, major=9, minor=0)
    install(torch=make_torch(hip="7.0", running={"cuda": [opened]}))
    rows, findings = probe()
    assert [(row["arch"], row["memory_bytes"], row["torch_device"]) for row in rows] == [("gfx90a", GIB, "cuda:0")]
    assert findings == ["torch runs on these devices already"]


def test_cudas_torch_that_runs_is_not_asked(install: Install) -> None:
    opened = SimpleNamespace(major=9, minor=0, name="H100", total_memory=GIB)
    install(torch=make_torch(cuda="12.9", running={"cuda": [opened]}))
    assert probe()[0] == []


def test_an_amd_device_of_an_unknown_arch_keeps_its_number(install: Install, topology: Callable[..., None]) -> None:
    topology(100300, 90402)
    install(torch=make_torch(hip="7.0"))
    rows, findings = probe()
    assert [(row["arch"], row["torch_device"]) for row in rows] == [("gfx942", "cuda:1")]
    assert "gfx1030" in findings[0]


def test_parts_of_a_device_have_their_own_memory(topology: Callable[..., None], install: Install) -> None:
    """A divided device is a node per part, each with its own banks."""
    topology(90402, 90402, 90402)
    install(torch=make_torch(hip="7.0"))
    assert [row["memory_bytes"] for row in probe()[0]] == [GIB, 2 * GIB, 3 * GIB]


def test_node_that_cannot_be_read_costs_itself_alone(topology: Callable[..., None], install: Install, tmp_path: Path) -> None:
    topology(90402, 90402)
    (tmp_path / "kfd" / "1" / "properties").write_text("simd_count many\n")
    install(torch=make_torch(hip="7.0"))
    rows, findings = probe()
    assert len(rows) == 1
    assert findings[0].startswith("node 1: ValueError")


def test_what_is_no_node_and_a_field_that_nobody_asks_for_cost_nothing(
    topology: Callable[..., None], install: Install, tmp_path: Path
) -> None:
    topology(90402, 90402)
    (tmp_path / "kfd" / "generation").mkdir()
    with (tmp_path / "kfd" / "1" / "properties").open("a") as fields:
        fields.write("marketing_name MI300X\n")
    install(torch=make_torch(hip="7.0"))
    rows, findings = probe()
    assert [row["arch"] for row in rows] == ["gfx942", "gfx942"]
    assert findings == []
