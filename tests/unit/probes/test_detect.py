"""detect() over whatever the probes do: bounded in time, silent, without a child process and without a compute context."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType

import pytest

import hal
from hal.common.backends import detection
from hal.common.backends.detection import probe_platforms
from hal.common.contract import quiet

from .helpers.fakes import GIB, FakeNVML, make_amdsmi, make_pyrsmi, make_torch

Install = Callable[..., None]
Raise = Callable[[str, BaseException], None]
H100 = ((9, 0), "NVIDIA H100", False)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit that a test can wait for."""
    monkeypatch.setattr(detection, "probe_quietly", lambda look: quiet.probe_quietly(look, seconds=0.1))


def findings_of(platform: str) -> tuple[str, ...]:
    return next(probe.findings for probe in probe_platforms() if probe.platform == platform)


@pytest.mark.parametrize(
    "error", [KeyError("libamd_smi.so"), OSError("libze_loader.so.1"), RuntimeError("driver"), ImportError("x")]
)
@pytest.mark.parametrize(("library", "platform"), [("pynvml", "cuda"), ("amdsmi", "rocm"), ("pyzes", "xpu")])
def test_every_librarys_error_on_import_is_a_finding_and_silent(
    library: str, platform: str, error: Exception, raise_on_import: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_on_import(library, error)
    assert [found.platform for found in hal.detect()] == ["cpu"]
    assert any(f"{type(error).__name__}: {error}" in finding for finding in findings_of(platform))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [KeyError("libamd_smi.so"), OSError("gone"), RuntimeError("amdgpu is not loaded")])
def test_every_librarys_error_on_init_is_a_finding_and_silent(
    error: Exception, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        print("noise on stdout")
        raise error

    nvml, amdsmi, pyzes = FakeNVML(H100), make_amdsmi("gfx942"), ModuleType("pyzes")
    nvml.nvmlInit = amdsmi.amdsmi_init = pyzes.zesInit = fail
    install(pynvml=nvml, amdsmi=amdsmi, pyzes=pyzes, **make_pyrsmi(error=error))
    assert [found.platform for found in hal.detect()] == ["cpu"]
    text = f"{type(error).__name__}: {error}"
    assert [any(text in finding for finding in findings_of(platform)) for platform in ("cuda", "rocm", "xpu")] == [True] * 3
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("hasty")
def test_library_that_hangs_costs_the_limit_and_its_late_answer_is_dropped(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml, release, over = FakeNVML(H100), threading.Event(), threading.Event()

    def hang() -> None:
        release.wait(5)
        print("noise on stdout")
        nvml.is_open = True

    nvml.nvmlInit, nvml.nvmlShutdown = hang, over.set
    install(pynvml=nvml)
    start = time.monotonic()
    found = hal.detect()
    assert time.monotonic() - start < 2
    assert [each.platform for each in found] == ["cpu"]
    assert findings_of("cuda") == ("no answer within 0.1 s",)
    print("the program's own words")
    release.set()
    assert over.wait(5)
    assert [each.platform for each in found] == ["cpu"]
    assert capsys.readouterr().out == "the program's own words\n"


@pytest.mark.usefixtures("hasty")
def test_platform_from_outside_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from hal.common.contract import platform as platform_module

    real = platform_module.load_object

    def load(path: str) -> object:
        return real(path) if path.startswith("hal.cpu") else lambda: time.sleep(1)

    monkeypatch.setattr(platform_module, "load_object", load)
    assert [found.platform for found in hal.detect()] == ["cpu"]
    assert findings_of("xpu") == ("no answer within 0.1 s",)


def test_the_limit_is_two_seconds() -> None:
    assert quiet.SECONDS == 2


def test_other_threads_keep_their_voice(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    nvml, started, said = FakeNVML(H100), threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        said.wait(1)

    def speak() -> None:
        started.wait(1)
        print("a server's log line")
        said.set()

    nvml.nvmlInit = wait
    install(pynvml=nvml)
    speaker = threading.Thread(target=speak)
    speaker.start()
    hal.detect()
    speaker.join()
    assert capsys.readouterr().out == "a server's log line\n"


SPEAK = {
    "print": lambda: print("noise", flush=True),
    "write": lambda: sys.stdout.write("noise"),
    "writelines": lambda: sys.stdout.writelines(["noise", "more noise"]),
    "buffer": lambda: sys.stdout.buffer.write(b"noise"),
}


@pytest.mark.parametrize("speak", SPEAK.values(), ids=SPEAK)
def test_every_way_to_speak_is_silenced(
    speak: Callable[[], object], install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml = FakeNVML(H100)
    nvml.nvmlShutdown = speak
    install(pynvml=nvml)
    assert [found.platform for found in hal.detect()] == ["cuda", "cpu"]
    assert capsys.readouterr().out == ""


def test_a_program_without_stdout_is_served_too(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNVML(H100)
    nvml.nvmlShutdown = SPEAK["print"]
    install(pynvml=nvml)
    monkeypatch.setattr(sys, "stdout", None)
    assert [found.platform for found in hal.detect()] == ["cuda", "cpu"]
    assert sys.stdout is None


@pytest.mark.parametrize("count", [-1, 2**31, "two", None, 1.5], ids=repr)
def test_a_count_of_devices_that_cannot_be_is_a_finding(count: object, install: Install) -> None:
    nvml = FakeNVML(H100)
    nvml.nvmlDeviceGetCount = lambda: count
    install(pynvml=nvml)
    assert [found.platform for found in hal.detect()] == ["cpu"]
    assert any(f"NVML counts {count!r}" in finding for finding in findings_of("cuda"))


def test_stdout_is_the_programs_own_again() -> None:
    before = sys.stdout
    hal.detect()
    assert sys.stdout is before


@pytest.mark.parametrize("built_for", ["cuda", "hip", "xpu"])
def test_no_context_and_no_child_process(built_for: str, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake torch fails whatever would open a device; every way to start a process fails too."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    for owner, name in [(subprocess, "Popen"), (os, "fork"), (os, "system"), (os, "posix_spawn"), (os, "execv")]:
        monkeypatch.setattr(owner, name, forbidden)
    install(torch=make_torch(**{built_for: "1.0"}), pynvml=FakeNVML(H100), amdsmi=make_amdsmi("gfx942"))
    found = {each.platform: each for each in hal.detect()}
    assert set(found) == {"cuda", "rocm", "cpu"}
    assert not any("AssertionError" in finding for probe in probe_platforms() for finding in probe.findings)
    usable = {name for name, each in found.items() if each.torch_device is not None}
    assert usable == {"cpu"} | {"cuda": {"cuda"}, "hip": {"rocm"}, "xpu": set()}[built_for]


def test_memory_is_the_visible_parts(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(pynvml=FakeNVML(((9, 0), "H100", True)), torch=make_torch(cuda="12.9"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-00-aa")
    assert [(each.target, each.memory_bytes) for each in hal.detect()[:-1]] == [("cuda:sm_90", 5 * GIB)]


@pytest.mark.parametrize(("built_for", "platform"), [("cuda", "cuda"), ("hip", "rocm"), ("xpu", "xpu")])
def test_torch_alone_is_told_of_and_not_opened(built_for: str, platform: str, install: Install) -> None:
    """Where no management library works, as under WSL or on a Jetson."""
    install(torch=make_torch(**{built_for: "1.0"}))
    assert [found.platform for found in hal.detect()] == ["cpu"]
    told = {probe.platform: " ".join(probe.findings) for probe in probe_platforms()}
    assert {name: "has opened no device" in text for name, text in told.items()} == {name: name == platform for name in told}
