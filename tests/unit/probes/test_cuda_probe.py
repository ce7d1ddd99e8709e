"""NVIDIA GPUs by way of NVML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hal.cuda.probe import probe

from .helpers.fakes import GIB, FakeNVML, make_torch

H100, RTX = ((9, 0), "NVIDIA H100", False), ((12, 0), b"NVIDIA GeForce RTX 5090", False)
Install = Callable[..., None]


@pytest.fixture
def bus_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers mean the devices of NVML's list."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@pytest.mark.usefixtures("bus_order")
def test_devices_are_listed_in_the_order_of_torch(install: Install) -> None:
    nvml = FakeNVML(H100, RTX)
    install(pynvml=nvml, torch=make_torch(cuda="12.9"))
    rows, findings = probe()
    assert rows == [
        {"arch": "sm_90", "index": 0, "name": "NVIDIA H100", "memory_bytes": GIB, "fp8": "e4m3fn", "torch_device": "cuda:0"},
        {
            "arch": "sm_120",
            "index": 1,
            "name": "NVIDIA GeForce RTX 5090",
            "memory_bytes": 2 * GIB,
            "fp8": "e4m3fn",
            "torch_device": "cuda:1",
        },
    ]
    assert findings == []
    assert not nvml.is_open


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("1", ["sm_120"]),
        ("1,0", ["sm_120", "sm_90"]),
        ("1abc", ["sm_120"]),
        ("0,7,1", ["sm_90"]),
        ("-1", []),
        ("", []),
        ("0,0", []),
        ("GPU-11", ["sm_120"]),
        ("GPU-11,0", ["sm_120"]),
        ("GPU-99", []),
        ("MIG-GPU-11/0/0", []),
        ("0,MIG-11", ["sm_90"]),
    ],
)
@pytest.mark.usefixtures("bus_order")
def test_hidden_nvidia_devices_are_left_out(
    install: Install, monkeypatch: pytest.MonkeyPatch, value: str, names: list[str]
) -> None:
    install(pynvml=FakeNVML(H100, RTX), torch=make_torch(cuda="12.9"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    rows, findings = probe()
    assert [row["arch"] for row in rows] == names
    assert [row["torch_device"] for row in rows] == [f"cuda:{index}" for index in range(len(rows))]
    if not names:
        assert "CUDA_VISIBLE_DEVICES" in findings[0]


def test_torch_without_cuda_leaves_devices_for_planning(install: Install) -> None:
    install(pynvml=FakeNVML(H100), torch=make_torch())
    rows, findings = probe()
    assert [row["torch_device"] for row in rows] == [None]
    assert findings == ["1 devices are here and torch 2.99 is built without cuda: they can be planned for, not used"]


def test_number_means_nothing_where_archs_differ_and_torch_orders_by_speed(install: Install) -> None:
    install(pynvml=FakeNVML(H100, RTX), torch=make_torch(cuda="12.9"))
    rows, findings = probe()
    assert [(row["arch"], row["torch_device"]) for row in rows] == [("sm_90", None), ("sm_120", None)]
    assert "CUDA_DEVICE_ORDER" in findings[-1]


def test_names_mean_one_device_in_any_order(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(pynvml=FakeNVML(H100, RTX), torch=make_torch(cuda="12.9"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11,GPU-00")
    rows, findings = probe()
    assert [(row["arch"], row["torch_device"]) for row in rows] == [("sm_120", "cuda:0"), ("sm_90", "cuda:1")]
    assert findings == []


def test_divided_device_is_unknown_rather_than_wrong(install: Install) -> None:
    install(pynvml=FakeNVML(((9, 0), "H100", True), H100), torch=make_torch(cuda="12.9"))
    rows, findings = probe()
    assert [(row["arch"], row["torch_device"]) for row in rows] == [("sm_90", None)]
    assert "divided by MIG" in findings[0]


@pytest.mark.parametrize("value", ["MIG-01-bb", "MIG-01-bb,MIG-02-bb", " MIG-01-bb"])
def test_part_has_its_own_memory_and_its_devices_arch(install: Install, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    install(pynvml=FakeNVML(((9, 0), "H100", True), RTX), torch=make_torch(cuda="12.9"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    (row,), findings = probe()
    assert (row["arch"], row["memory_bytes"], row["torch_device"]) == ("sm_90", 5 * GIB, "cuda:0")
    assert "MIG" in row["name"]
    assert len(findings) == value.count(",")


@pytest.mark.parametrize("value", ["MIG-9-cc", "MIG-GPU-00/1/0"])
def test_part_that_is_not_there_is_a_finding(install: Install, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    install(pynvml=FakeNVML(((9, 0), "H100", True)), torch=make_torch(cuda="12.9"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    rows, findings = probe()
    assert rows == []
    assert "CUDA_VISIBLE_DEVICES=MIG" in findings[0]


def test_a_torch_that_runs_is_asked_for_its_nvidia_devices(install: Install) -> None:
    part = SimpleNamespace(major=9, minor=0, name="NVIDIA H100 MIG 1g.10gb", total_memory=9 * GIB)
    install(torch=make_torch(cuda="12.9", running={"cuda": [part]}))
    (row,), findings = probe()
    assert (row["arch"], row["memory_bytes"], row["torch_device"]) == ("sm_90", 9 * GIB, "cuda:0")
    assert findings == ["torch runs on these devices already"]


def test_rocms_torch_that_looks_like_cuda_is_not_taken_for_it(install: Install) -> None:
    """Its gfx90a says capability (9, 0), as an H100 does."""
    lookalike = SimpleNamespace(major=9, minor=0, name="AMD Instinct MI210", total_memory=GIB, gcnArchName="gfx90a:sramecc+")
    install(torch=make_torch(hip="7.0", running={"cuda": [lookalike]}))
    assert probe()[0] == []
    install(pynvml=FakeNVML(H100))
    rows, findings = probe()
    assert [row["torch_device"] for row in rows] == [None]
    assert "built without cuda" in findings[0]


@pytest.mark.usefixtures("bus_order")
def test_an_nvidia_device_of_an_unknown_arch_keeps_its_number(install: Install) -> None:
    install(pynvml=FakeNVML(((7, 0), "V100", False), H100), torch=make_torch(cuda="12.9"))
    (row,), _ = probe()
    assert (row["index"], row["torch_device"]) == (1, "cuda:1")


def test_arch_outside_the_table_is_a_finding(install: Install) -> None:
    install(pynvml=FakeNVML(((7, 0), "V100", False)), torch=make_torch(cuda="12.9"))
    rows, findings = probe()
    assert rows == []
    assert "sm_70, which is not in the table" in findings[0]


@pytest.mark.parametrize("error", [OSError("no library"), KeyError("libamd"), RuntimeError("driver"), SystemError("odd")])
def test_errors_of_init_and_import_are_findings(
    install: Install, raise_on_import: Callable[[str, BaseException], None], error: Exception
) -> None:
    nvml = FakeNVML(H100)

    def fail() -> None:
        raise error

    nvml.nvmlInit = fail
    install(pynvml=nvml)
    expected = f"NVML: {type(error).__name__}: {error}"
    assert probe() == ([], [expected])
    raise_on_import("pynvml", error)
    assert probe() == ([], [expected])


@pytest.mark.parametrize("getter", ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUUID"])
def test_getter_that_fails_costs_its_value_alone(install: Install, getter: str) -> None:
    nvml = FakeNVML(H100)

    def fail(handle: int) -> None:
        raise RuntimeError("gpu is lost")

    setattr(nvml, getter, fail)
    install(pynvml=nvml, torch=make_torch(cuda="12.9"))
    rows, findings = probe()
    assert [row["arch"] for row in rows] == ["sm_90"]
    assert any("gpu is lost" in finding for finding in findings)


def test_driver_without_the_library_is_told(tmp_path: Path) -> None:
    (tmp_path / "nvidia" / "0000:01:00.0").mkdir(parents=True)
    rows, findings = probe()
    assert rows == []
    assert "1 GPUs; install nvidia-ml-py" in findings[1]


def test_interrupt_is_not_swallowed(raise_on_import: Callable[[str, BaseException], None]) -> None:
    raise_on_import("pynvml", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        probe()
