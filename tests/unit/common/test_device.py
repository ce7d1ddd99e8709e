"""Targets in the one grammar, and probes that may fail in any way."""

from __future__ import annotations

import pytest

import hal
from hal.common import platform as platform_module
from hal.common.detection import PlatformProbe, probe_platforms
from hal.common.registry import platforms

ROWS = [(platform, arch) for platform in platforms().values() for arch in platform.archs()]
IDS = [f"{platform.name}:{arch.name}" for platform, arch in ROWS]


@pytest.mark.parametrize(("platform", "arch"), ROWS, ids=IDS)
def test_every_arch_can_be_named_with_and_without_its_platform(platform, arch) -> None:
    device = hal.Device.from_arch(arch.name)
    assert device == hal.Device.from_arch(f"{platform.name}:{arch.name}") == hal.Device.from_arch(device.target)
    assert (device.platform, device.arch, device.fp8) == (platform.name, arch.name, arch.fp8)
    assert str(device) == device.target
    assert device.present == (platform.name == "cpu")


@pytest.mark.parametrize(
    ("target", "written"), [("cpu", "cpu"), ("sm_90", "cuda:sm_90"), ("gfx942", "rocm:gfx942"), ("pvc", "xpu:pvc")]
)
def test_targets_are_written_in_full(target: str, written: str) -> None:
    assert hal.Device.from_arch(target).target == written


def test_arch_names_are_unique() -> None:
    names = [name for _, arch in ROWS for name in (arch.name, *arch.aliases)]
    assert len(names) == len(set(names))


def test_an_absent_device_has_nowhere_for_tensors_unless_told() -> None:
    assert hal.Device.from_arch("sm_90").torch_device is None
    told = hal.Device.from_arch("sm_90", torch_device="cpu")
    assert (told.torch_device, told.arch, told.present) == ("cpu", "sm_90", False)
    assert hal.Device.from_arch("cpu").torch_device == "cpu"


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("sm_91", "sm_90"),
        ("sm90", "sm_90"),
        ("cuda:sm90", "cuda:sm_90"),
        ("gfx924", "gfx942"),
        ("cud:sm_90", "cuda:sm_90"),
        ("rocm:sm_90", "sm_90"),
        ("bgm", "bmg"),
    ],
)
def test_a_near_miss_is_answered_with_what_was_meant(target: str, near: str) -> None:
    with pytest.raises(ValueError, match="unknown target") as error:
        hal.Device.from_arch(target)
    hint = str(error.value).partition("did you mean")[2].partition("?")[0]
    assert near in hint
    assert all(name in str(error.value) for name in ["cpu", "cuda:sm_90", "rocm:gfx950", "xpu:bmg"])


@pytest.mark.parametrize("target", ["", ":", "cuda:", "cuda:sm_90:extra", "zzzzzzzz"], ids=repr)
def test_what_is_no_target_is_refused_with_the_list(target: str) -> None:
    with pytest.raises(ValueError, match=r"unknown target.*nown targets: .*cuda:sm_90"):
        hal.Device.from_arch(target)


@pytest.mark.parametrize(
    ("arch", "fp8"),
    [
        ("sm_80", None),
        ("sm_86", None),
        ("sm_89", "e4m3fn"),
        ("sm_90", "e4m3fn"),
        ("gfx942", "e4m3fnuz"),
        ("gfx950", "e4m3fn"),
        ("gfx90a", None),
    ],
)
def test_fp8_encoding_follows_the_arch(arch: str, fp8: str | None) -> None:
    assert hal.Device.from_arch(arch).fp8 == fp8


def test_the_cpu_is_always_there_and_last() -> None:
    found = hal.detect()
    assert found[-1].platform == "cpu"
    assert found[-1].present
    assert found[-1].torch_device == "cpu"
    assert found[-1].memory_bytes is None or found[-1].memory_bytes > 0


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch):
    """Replaces what the accelerators' probes do."""
    real = platform_module.load_object

    def install(probe) -> None:
        def load(path: str):
            return real(path) if path.startswith("hal.cpu") else probe

        monkeypatch.setattr(platform_module, "load_object", load)

    return install


@pytest.mark.parametrize(
    "error", [KeyError("x"), OSError("no libze"), RuntimeError("init"), ImportError("amdsmi"), ValueError()], ids=repr
)
def test_a_probe_that_raises_becomes_a_finding(error: Exception, probes) -> None:
    def probe() -> None:
        raise error

    probes(probe)
    assert [device.platform for device in hal.detect()] == ["cpu"]
    findings = {each.platform: each.findings for each in probe_platforms() if each.platform != "cpu"}
    assert set(findings.values()) == {(f"{type(error).__name__}: {error}",)}


@pytest.mark.parametrize("answer", [None, 5, ([{"colour": "red"}], []), ([{}], []), ([1], [2])], ids=repr)
def test_a_probe_that_answers_nonsense_becomes_a_finding(answer: object, probes) -> None:
    probes(lambda: answer)
    assert [device.platform for device in hal.detect()] == ["cpu"]
    assert all(each.findings for each in probe_platforms())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit], ids=lambda error: error.__name__)
def test_leaving_the_program_is_not_a_finding(error: type[BaseException], probes) -> None:
    def probe() -> None:
        raise error

    probes(probe)
    with pytest.raises(error):
        hal.detect()


def test_a_device_of_an_arch_that_its_platform_has_not_is_a_finding(probes) -> None:
    probes(lambda: ([{"arch": "zz_1"}], ["one card"]))
    assert [device.platform for device in hal.detect()] == ["cpu"]
    assert probe_platforms()[0].findings == ("one card", "a device is of arch 'zz_1', which is not in the table")


@pytest.mark.parametrize("answer", [None, ([], ["nothing"])], ids=["raises", "no device"])
def test_the_cpu_is_there_whatever_its_probe_says(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe() -> object:
        if answer is None:
            raise PermissionError("/proc/cpuinfo")
        return answer

    monkeypatch.setattr(platform_module, "load_object", lambda _: probe)
    (cpu,) = hal.detect()
    assert (cpu.platform, cpu.present, cpu.torch_device) == ("cpu", True, "cpu")
    assert probe_platforms()[-1].findings


def test_the_cpu_comes_after_a_plugin_that_is_always_there(registry) -> None:
    own = hal.Platform(
        name="aaa", package="hal.cpu", backends=(), probe_path="hal.cpu.probe:probe", torch_type="cpu", always_present=True
    )
    hal.register_platform(own)
    assert [device.platform for device in hal.detect()] == ["aaa", "cpu"]


def test_devices_that_are_found_come_before_the_cpu(probes) -> None:
    probes(lambda: ([{"arch": "sm_90", "index": 1, "torch_device": "cuda:1"}], ["one card"]))
    *cards, cpu = hal.detect()
    assert cpu.platform == "cpu"
    assert {(card.arch, card.index, card.present) for card in cards} == {("sm_90", 1, True)}
    assert isinstance(probe_platforms()[0], PlatformProbe)
    assert probe_platforms()[0].findings == ("one card",)
