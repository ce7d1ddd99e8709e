"""Targets in the one grammar, and probes that may fail in any way."""

from __future__ import annotations

import pytest
import torch

import hal
from hal.common.backends.detection import PlatformProbe, find_device, probe_platforms
from hal.common.backends.registry import platforms
from hal.common.contract import platform as platform_module
from hal.common.contract.arch import split_words

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


def test_part_names_are_unique_however_they_are_written() -> None:
    names = ["".join(split_words(part)) for _, arch in ROWS for part in arch.parts]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("platform", "arch"), ROWS, ids=IDS)
def test_every_part_stands_for_its_arch(platform, arch) -> None:
    for part in arch.parts:
        meant = {hal.Device.from_arch(text).target for text in (part, part.lower().replace(" ", ""), f"{platform.name}:{part}")}
        assert meant == {f"{platform.name}:{arch.name}"}, part


@pytest.mark.parametrize(
    ("target", "written"),
    [
        ("h100", "cuda:sm_90"),
        ("A100", "cuda:sm_80"),
        ("mi300x", "rocm:gfx942"),
        ("max1550", "xpu:pvc"),
        ("cuda:h100", "cuda:sm_90"),
        ("SM_90", "cuda:sm_90"),
        ("sm_90a", "cuda:sm_90"),
        ("NVIDIA H100 80GB HBM3", "cuda:sm_90"),
        ("NVIDIA A100-SXM4-80GB", "cuda:sm_80"),
        ("NVIDIA A10", "cuda:sm_86"),
        ("NVIDIA L40S", "cuda:sm_89"),
        ("NVIDIA GB200", "cuda:sm_100"),
        ("AMD Instinct MI300X OAM", "rocm:gfx942"),
        ("AMD Radeon RX 7900 XTX", "rocm:gfx1100"),
        ("Intel(R) Data Center GPU Max 1550", "xpu:pvc"),
        ("Intel(R) Arc(TM) B580 Graphics", "xpu:bmg"),
    ],
)
def test_a_part_stands_for_its_arch_as_people_and_libraries_call_it(target: str, written: str) -> None:
    assert hal.Device.from_arch(target).target == written


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("h100sxm5", ["'cuda:sm_90' (H100)"]),
        ("rocm:h100", ["'cuda:sm_90' (H100)"]),
        ("nvidia:h100", ["'cuda:sm_90' (H100)"]),
        ("4090", ["'cuda:sm_89' (RTX 4090)"]),
        ("mx1550", ["'xpu:pvc' (Max 1550)"]),
        ("rtx6000", ["'cuda:sm_86' (RTX A6000)", "'cuda:sm_120' (RTX PRO 6000)", "'cuda:sm_89' (RTX 6000 Ada)"]),
        *((other, []) for other in ("v100", "p100", "t4", "mi100", "h10", "gaudi3", "mps")),
    ],
)
def test_a_part_that_is_not_in_the_table_is_never_taken_for_another_model(target: str, meant: list[str]) -> None:
    with pytest.raises(ValueError, match="unknown target") as error:
        hal.Device.from_arch(target)
    hint = str(error.value).partition("did you mean ")[2].partition("?")[0]
    assert sorted(hint.split(" or ")) == sorted(meant or [""])


@pytest.mark.parametrize("target", ["cuda", "cuda:1", "rocm", "rocm:0", "xpu", "cuda:", torch.device("cuda", 1)], ids=str)
@pytest.mark.parametrize("ask", [hal.Device.from_arch, find_device], ids=["from_arch", "find_device"])
def test_a_place_that_is_not_here_is_answered_with_its_platforms_archs(target: object, ask) -> None:
    with pytest.raises(ValueError, match="none of that kind is here") as error:
        ask(target)
    platform = str(target).partition(":")[0]
    known = str(error.value).partition("known targets: ")[2]
    assert known.startswith(f"{platform}:")
    assert "did you mean" not in str(error.value)


def test_what_needs_no_device_of_that_kind_takes_torchs_cpu() -> None:
    for wanted in ("cpu", torch.device("cpu"), torch.device("cpu", 0), hal.Device.from_arch("cpu")):
        assert find_device(wanted).target == "cpu"
    assert hal.kernels("cpu", torch.device("cpu")).device.target == "cpu"


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ("cuda", 0),
        ("cuda:0", 0),
        ("cuda:1", 1),
        (torch.device("cuda"), 0),
        (torch.device("cuda:1"), 1),
        ("sm_80", 1),
        ("A100", 1),
        ("H100", 0),
        (None, 0),
    ],
    ids=str,
)
def test_a_place_or_a_part_is_this_machines_device(wanted: object, index: int, probes) -> None:
    rows = [{"arch": arch, "index": i, "torch_device": f"cuda:{i}"} for i, arch in enumerate(("sm_90", "sm_80"))]
    probes(lambda: (rows, []))
    found = find_device(wanted)
    assert (found.present, found.index, found.arch) == (True, index, rows[index]["arch"])


def test_a_part_that_is_not_here_is_planned_for(probes) -> None:
    probes(lambda: ([{"arch": "sm_90", "torch_device": "cuda:0"}], []))
    assert find_device("MI300X") == hal.Device.from_arch("gfx942")
    with pytest.raises(ValueError, match=r"on this machine: cuda:sm_90 \(cuda:0\), cpu"):
        find_device("cuda:7")


@pytest.mark.parametrize("wanted", [3, b"cpu", ["cpu"], torch.float16], ids=str)
def test_what_is_no_target_at_all_is_refused(wanted: object) -> None:
    with pytest.raises(ValueError, match=r"device is .*expected a hal\.Device"):
        find_device(wanted)


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
