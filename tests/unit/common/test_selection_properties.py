"""Every registered backend, every arch, any request: an answer, always the same, and no worse for more software."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hal
from hal.common.backends import registry
from hal.common.backends.registry import backends, known_libraries, platforms
from hal.common.contract.reason import CODES
from hal.config import IndexerShape, LayerShape, MLAShape

from .helpers.fakes import codes, gqa_layer, mla_layer, sparse_layer

BOUNDED = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
TARGETS = [f"{name}:{arch.name}" for name, platform in platforms().items() for arch in platform.archs()]
LIBRARIES = sorted(known_libraries())
PORTABLE = {cls.platform: name for name, cls in backends().items() if cls.provides is None and cls.capabilities is not None}
"""By platform the backend that needs no library."""
PLAIN = {"gqa": gqa_layer(), "mla": mla_layer(), "sparse": sparse_layer(), "shared": sparse_layer(owns=False)}

COUNTS = st.sampled_from([1, 2, 3, 8, 16, 40, 64, 128])
WIDTHS = st.sampled_from([7, 16, 64, 80, 96, 128, 192, 256, 512, 576])
OPTIONAL = st.none() | st.integers(1, 8192)


@st.composite
def layers(draw) -> LayerShape:
    kind = draw(st.sampled_from(["attention", "mla", "compressed", "cross", "none"]))
    masks = {
        "window": draw(OPTIONAL),
        "chunk": draw(OPTIONAL),
        "sink": draw(st.booleans()),
        "softcap": draw(st.none() | st.just(30.0)),
        "causal": draw(st.booleans()),
        "position_bias": draw(st.sampled_from([None, "alibi", "relative"])),
    }
    heads = draw(COUNTS)
    if kind != "mla":
        ratio = draw(st.sampled_from([0, 4, 128])) if kind == "compressed" else None
        return LayerShape(
            layer_id=0,
            kind=kind,
            num_heads=heads,
            num_kv_heads=draw(COUNTS),
            head_dim=draw(WIDTHS),
            v_head_dim=draw(WIDTHS),
            compress_ratio=ratio,
            **masks,
        )
    mla = MLAShape(
        kv_lora_rank=draw(WIDTHS),
        qk_nope_head_dim=draw(WIDTHS),
        qk_rope_head_dim=draw(st.sampled_from([0, 16, 64])),
        v_head_dim=draw(WIDTHS),
    )
    indexer = None
    if draw(st.booleans()):
        topk, pool = draw(st.sampled_from([1, 64, 512, 1000, 2048])), draw(st.sampled_from([1, 4]))
        indexer = IndexerShape(topk=topk, num_heads=draw(COUNTS), head_dim=draw(WIDTHS), pool=pool, owns=draw(st.booleans()))
    return LayerShape(
        layer_id=0,
        kind="mla",
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=mla.qk_head_dim,
        v_head_dim=mla.v_head_dim,
        mla=mla,
        indexer=indexer,
        **masks,
    )


@st.composite
def software(draw) -> hal.Software | None:
    if draw(st.booleans()):
        return None
    names = draw(st.sets(st.sampled_from(LIBRARIES or ["none"])))
    versions = {name: draw(st.sampled_from(["0.1", "1.0", "3.0.0", "99.1"])) for name in sorted(names)}
    return hal.Software(versions, broken={name: "OSError: x" for name in sorted(names) if draw(st.booleans())})


@st.composite
def requests(draw) -> hal.Request:
    dcp = draw(st.sampled_from([1, 1, 2]))
    return hal.Request(
        layer=draw(layers()),
        device=hal.Device.from_arch(draw(st.sampled_from(TARGETS))),
        dtype=draw(st.sampled_from(["bfloat16", "float16", "float32", "float64"])),
        kv_layout=draw(st.sampled_from(["auto", "kv", "latent", "latent_fp8", "fp8_ds_mla", "compressed", "kv_fp8", "nonsense"])),
        block_size=draw(st.none() | st.sampled_from([1, 16, 48, 64, 128, 256])),
        parallel=hal.Parallel(tp=draw(st.sampled_from([1, 2, 3, 8])), dcp=dcp, interleave=draw(st.sampled_from([1, 6, 16]))),
        software=draw(software()),
        graphs=draw(st.sampled_from(["never", "uniform_single", "uniform_batch", "always"])),
        num_spec_tokens=draw(st.integers(0, 3)),
        need_lse=draw(st.booleans()),
        deterministic=draw(st.booleans()),
    )


@BOUNDED
@given(request=requests())
def test_every_request_gets_an_answer_from_every_backend(request: hal.Request) -> None:
    answers = hal.supports_combination(request)
    assert set(answers) == set(backends())
    for name, reasons in answers.items():
        assert set(codes(reasons)) <= set(CODES)
        environmental = [reason.is_environmental for reason in reasons]
        assert environmental == sorted(environmental, reverse=True)
        assert len(set(map(str, reasons))) == len(reasons)
        assert (codes(reasons) == ["platform"]) == (backends()[name].platform != request.device.platform)


def forget() -> None:
    """Drop what was answered before, which would be equal to itself."""
    registry._registry.answers = None


@BOUNDED
@given(request=requests())
def test_equal_requests_get_equal_answers(request: hal.Request) -> None:
    """Worked out anew, for a request that is equal and another object, after other questions."""
    forget()
    first = hal.supports_combination(request), _selected(request)
    forget()
    other = copy.deepcopy(request)
    assert other == request
    hal.supports_combination(_with(request, dtype="float16", graphs="always"))
    second = hal.supports_combination(other), _selected(other)
    assert second == first
    assert [[str(reason) for reason in reasons] for reasons in second[0].values()] == [
        [str(reason) for reason in reasons] for reasons in first[0].values()
    ]


def _selected(request: hal.Request) -> hal.Selection | str:
    try:
        return hal.select(request)
    except hal.NoBackend as error:
        return str(error)


def test_answers_do_not_depend_on_the_process() -> None:
    """Sets and hashes have another order in every process."""
    code = (
        "import hal; from hal.common.backends.registry import platforms\n"
        "from hal.config import LayerShape\n"
        "layer = LayerShape(layer_id=0, kind='attention', num_heads=8, num_kv_heads=3, head_dim=7, v_head_dim=7, window=3,"
        " position_bias='alibi')\n"
        "for p in platforms().values():\n"
        "    for a in p.archs():\n"
        "        request = hal.Request(layer, hal.Device.from_arch(f'{p.name}:{a.name}'), 'float64', 'nonsense', 48,"
        " hal.Parallel(tp=2), hal.Software({}), 'always', 3, True, True)\n"
        "        print({n: [str(r) for r in rs] for n, rs in hal.supports_combination(request).items()})"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "alibi" in outputs.pop()


@BOUNDED
@given(request=requests())
def test_a_portable_path_or_a_reason_that_lies_in_the_request(request: hal.Request) -> None:
    """No library, missing, old or broken, is between a request and its platform's portable backend."""
    reasons = hal.supports_combination(request)[PORTABLE[request.device.platform]]
    assert not {code for code in codes(reasons) if code.startswith("library_") or code == "platform"}
    if not reasons:
        assert hal.select(request, backend=PORTABLE[request.device.platform]).source == "argument"


@BOUNDED
@given(request=requests())
def test_selection_is_a_supported_backend_or_every_reason(request: hal.Request) -> None:
    answers = hal.supports_combination(request)
    if all(answers.values()):
        with pytest.raises(hal.NoBackend) as error:
            hal.select(request)
        assert error.value.rejected == answers
        return
    selection = hal.select(request)
    assert answers[selection.backend] == ()
    assert selection.rejected == {name: reasons for name, reasons in answers.items() if reasons}
    assert all(answers[name] == () for name in selection.providers.values())
    assert selection == hal.select(request)
    assert request.block_size in (None, selection.block_size)


@BOUNDED
@given(request=requests(), more=st.sets(st.sampled_from(LIBRARIES or ["none"])))
def test_more_software_takes_nothing_away(request: hal.Request, more: set[str]) -> None:
    if request.software is None:
        return
    versions = dict(request.software.versions)
    richer = hal.Software({**versions, **{name: "99.1" for name in more if name not in versions}}, dict(request.software.broken))
    poor, rich, assumed = (hal.supports_combination(_with(request, software=each)) for each in (request.software, richer, None))
    served = [{name for name, reasons in answers.items() if not reasons} for answers in (poor, rich, assumed)]
    assert served[0] <= served[1] <= served[2]
    portable = PORTABLE[request.device.platform]
    assert len({portable in names for names in served}) == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", PLAIN)
def test_the_portable_path_needs_no_library(kind: str, target: str) -> None:
    device = hal.Device.from_arch(target)
    request = hal.Request(PLAIN[kind], device, "bfloat16", software=hal.Software({}))
    portable = backends()[PORTABLE[device.platform]]
    reasons = hal.supports_combination(request)[portable.name]
    if portable.capabilities is None:
        assert codes(reasons) == ["not_built"]
    else:
        # Nothing but what the arch itself cannot hold may stand in the way.
        assert [str(reason) for reason in reasons if device.arch not in str(reason)] == []


class Untouchable(Mapping[str, str]):
    """An environment that must not be looked at."""

    def __getitem__(self, name: str) -> str:
        raise AssertionError(f"{name} was read")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the environment was listed")

    def __len__(self) -> int:
        raise AssertionError("the environment was counted")


@BOUNDED
@given(request=requests())
def test_support_reads_no_environment(request: hal.Request, monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", Untouchable())
        hal.supports_combination(request)


def _with(request: hal.Request, **changes: object) -> hal.Request:
    names = ("layer", "device", "dtype", "kv_layout", "block_size", "parallel", "software", "graphs")
    names += ("num_spec_tokens", "need_lse", "deterministic")
    return hal.Request(**({name: getattr(request, name) for name in names} | changes))
