"""NVIDIA GPUs by way of NVML."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hal.cuda.probe
from hal.common.vendor import probing
from hal.cuda.probe import probe

from .fakes import GIB, FakeNVML, make_torch

H100, RTX = ((9, 0), "NVIDIA H100", False), ((12, 0), b"NVIDIA GeForce RTX 5090", False)
Install = Callable[..., None]


def test_devices_in_torchs_order(install: Install) -> None:
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
    ],
)
def test_visibility(install: Install, monkeypatch: pytest.MonkeyPatch, value: str, names: list[str]) -> None:
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


def test_divided_device_is_unknown_rather_than_wrong(install: Install) -> None:
    install(pynvml=FakeNVML(((9, 0), "H100", True), RTX), torch=make_torch(cuda="12.9"))
    rows, findings = probe()
    assert [row["arch"] for row in rows] == ["sm_120"]
    assert "divided by MIG" in findings[0]


def test_arch_outside_the_table_is_a_finding(install: Install) -> None:
    install(pynvml=FakeNVML(((7, 0), "V100", False)), torch=make_torch(cuda="12.9"))
    rows, findings = probe()
    assert rows == []
    assert "sm_70, which is not in the table" in findings[0]


@pytest.mark.parametrize("error", [OSError("no library"), KeyError("libamd"), RuntimeError("driver"), SystemError("odd")])
def test_errors_of_init_and_import_are_findings(
    install: Install, raise_on_import: Callable[[str, BaseException], None], error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml = FakeNVML(H100)

    def fail() -> None:
        print("noise on stdout")
        raise error

    nvml.nvmlInit = fail
    install(pynvml=nvml)
    expected = f"NVML: {type(error).__name__}: {error}"
    assert probe() == ([], [expected])
    raise_on_import("pynvml", error)
    assert probe() == ([], [expected])
    assert capsys.readouterr().out == ""


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


def test_library_that_hangs_is_left_behind(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNVML(H100)
    nvml.nvmlInit = lambda: time.sleep(1)
    install(pynvml=nvml)
    start = time.monotonic()
    rows, findings = probing.probe_quietly(hal.cuda.probe._look, "NVML", seconds=0.05)
    assert (rows, findings) == ([], ["NVML: no answer within 0.05 s"])
    assert time.monotonic() - start < 0.8
    assert probing.SECONDS <= 2


def test_interrupt_is_not_swallowed(raise_on_import: Callable[[str, BaseException], None]) -> None:
    raise_on_import("pynvml", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        probe()
