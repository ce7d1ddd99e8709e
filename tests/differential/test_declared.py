"""Item 14: what a backend declares is what its calls do: each capability is run, and one that is not declared is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hal
from hal.common.backends.judging import explain_refusal
from hal.common.contract.backend import Backend
from hal.common.contract.call_values import PagedBatch, VarlenBatch
from hal.common.contract.errors import HalError
from hal.common.contract.layouts import attention_layout, latent_layout
from hal.common.contract.masking import Masking
from hal.config import LayerShape, read_shape
from hal.testing import ReferenceBackend
from hal.testing.case import FULL, fit_sizes
from hal.testing.suite.placement import place_of

from .helpers.softmax import Row, attend, draw_cache
from .helpers.targets import BOUNDED, ints

HEADS, KV_HEADS, WIDTH = 2, 1, 16
QUERY_LEN, LENGTH = 6, 11
SCALE = 0.4
ROUGH = 3e-2
"""Wider than any element type's rounding, and far narrower than what a missing mask does."""

Seen = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class Probe:
    """One capability: how to run it (True where the result is right), and whether a backend declares it."""

    run: Callable[[Backend], bool]
    is_declared: Callable[[type[Backend]], bool]


def causal(position: int, key: int) -> bool:
    return key <= position


def run_paged(
    seen: Seen = causal,
    *,
    dtype: str = "float32",
    layout: str = "kv",
    size: int = 0,
    width: int = WIDTH,
    need_lse: bool = False,
    ranges: list[tuple[int, int]] | None = None,
    **options: Any,
) -> Callable[[Backend], bool]:
    """paged_attention of one request, against the definition."""

    def run(backend: Backend) -> bool:
        where, generator = place_of(backend), torch.Generator().manual_seed(7)
        page = size or fit_sizes(type(backend).capabilities, FULL).block_sizes[0]
        pages = -(-LENGTH // page)
        kind = attention_layout(KV_HEADS, width, width, "float32") if layout == "kv" else latent_layout(width, width, "float32")
        drawn = draw_cache(kind, pages, page, generator, "cpu")
        storage = drawn.cache.storage.to(getattr(torch, dtype))
        cache = replace(drawn.cache, storage=storage.to(where), layout=replace(kind, dtype=dtype))
        key_width = width if layout == "kv" else 2 * width
        q = torch.randn(QUERY_LEN, HEADS, key_width, generator=generator).to(getattr(torch, dtype))
        batch = PagedBatch(
            ints([0, QUERY_LEN], where), ints([LENGTH], where), ints([list(range(pages))], where), QUERY_LEN, LENGTH
        )
        if ranges is not None:
            starts, stops = (ints([each[end] for each in ranges], where) for end in (0, 1))
            batch = replace(batch, key_starts=starts, key_stops=stops)
        out, lse = backend.paged_attention(
            q.to(where), cache, batch, softmax_scale=SCALE, need_lse=need_lse, masking=Masking(**options)
        )
        rows = drawn.of(list(range(pages)), LENGTH)
        keys, values = [row[:key_width] for row in rows], [row[-width:] if layout == "kv" else row[:width] for row in rows]
        return _is_right(out, lse if need_lse else None, q, keys, values, seen, options.get("softcap"))

    return run


RANGES = [(0, 3), (2, 9), (5, 11), (10, 11), (0, 11), (4, 5)]


def run_ranges(backend: Backend) -> bool:
    """Each query over a run of keys of its own, which replaces causality."""
    first = LENGTH - QUERY_LEN
    return run_paged(lambda p, k: RANGES[p - first][0] <= k < RANGES[p - first][1], ranges=RANGES)(backend)


def run_shard(backend: Backend) -> bool:
    """The rows of the second of two ranks: positions 1, 3, 5 are its first, second and third."""
    where, size = place_of(backend), fit_sizes(type(backend).capabilities, FULL).block_sizes[-1]
    table, place = ints([[3, 1, 2, 0]], where), hal.Parallel(dcp=2, dcp_rank=1)
    rows, valid = backend.rows_from_topk(
        ints([[5, 0, 3, 2, 1]], where), ints([0], where), table, ints([6], where), block_size=size, parallel=place
    )
    pages = [3, 1, 2, 0]
    expected = sorted(pages[index // size] * size + index % size for index in (0, 1, 2))
    return valid.tolist() == [3] and sorted(rows[0].tolist()) == [-1, -1, *expected]


def run_lse(backend: Backend) -> bool:
    """The natural logarithm of the sum of exponentials, fp32."""
    return run_paged(need_lse=True)(backend)


def _is_right(
    out: torch.Tensor, lse: torch.Tensor | None, q: torch.Tensor, keys: list[Row], values: list[Row], seen: Seen, softcap: Any
) -> bool:
    for token in range(QUERY_LEN):
        position = LENGTH - QUERY_LEN + token
        chosen = [key for key in range(LENGTH) if seen(position, key)]
        for head in range(HEADS):
            query = q[token, head].tolist()
            scores = [SCALE * sum(a * b for a, b in zip(query, keys[key], strict=True)) for key in chosen]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            # One "key" per score, so that attend() has nothing left to multiply.
            row, level = attend([1.0], [[score] for score in scores], [values[key] for key in chosen], 1.0)
            found = out[token, head].tolist()
            if any(abs(a - b) > ROUGH * (1 + abs(b)) for a, b in zip(found, row, strict=True)):
                return False
            if lse is not None and (lse.dtype != torch.float32 or abs(lse[token, head].item() - level) > ROUGH):
                return False
    return True


def run_masked_varlen(backend: Backend) -> bool:
    """Contiguous keys, each query limited to the ids it is given."""
    where, generator = place_of(backend), torch.Generator().manual_seed(8)
    q, k, v = (torch.randn(tokens, HEADS, WIDTH, generator=generator) for tokens in (QUERY_LEN, LENGTH, LENGTH))
    chosen = [[0, 3, 4, 9, 10], [1, 2, 3, 3, -1]] * (QUERY_LEN // 2)
    out, _ = backend.varlen_attention(
        *(tensor.to(where) for tensor in (q, k, v)),
        VarlenBatch(
            q_start_loc=ints([0, QUERY_LEN], where),
            k_start_loc=ints([0, LENGTH], where),
            max_query_len=QUERY_LEN,
            max_seq_len=LENGTH,
            selected=ints(chosen, where),
            first_key=ints([0], where),
        ),
        softmax_scale=SCALE,
    )
    for token in range(QUERY_LEN):
        mine = [key for key in sorted(set(chosen[token])) if 0 <= key <= LENGTH - QUERY_LEN + token]
        for head in range(HEADS):
            row, _ = attend(q[token, head].tolist(), k[mine, head].tolist(), v[mine, head].tolist(), SCALE)
            if any(abs(a - b) > ROUGH for a, b in zip(out[token, head].tolist(), row, strict=True)):
                return False
    return True


def run_sink(backend: Backend) -> bool:
    """out of one key of weight 1 with an lse of 0 and a sink of 0: half of it."""
    where = place_of(backend)
    out = torch.ones(3, HEADS, WIDTH, device=where)
    found = backend.apply_sink(out, torch.zeros(3, HEADS, device=where), torch.zeros(HEADS, device=where))
    return bool((found.cpu() - 0.5).abs().max() < ROUGH)


def run_pools(backend: Backend) -> bool:
    """Pools of four and an open tail of two, of a token that sees ten keys."""
    where = place_of(backend)
    found = backend.expand_pools(ints([[1, -1]], where), ints([10], where), 4, 12)
    return sorted(found[0].tolist()) == [-1] * 6 + [4, 5, 6, 7, 8, 9]


def run_ties(backend: Backend) -> bool:
    """Equal scores go to the lower ids."""
    where = place_of(backend)
    width = fit_sizes(type(backend).capabilities, FULL).topk_widths[0]
    found = backend.select_topk(torch.ones(1, 40, device=where), ints([40], where), 3, width, True)
    return sorted(found[0].tolist())[-3:] == [0, 1, 2]


LAYER = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": WIDTH, "v_head_dim": WIDTH, "softmax_scale": SCALE}


def declares(code: str, *, dtype: str = "", **changes: Any) -> Callable[[type[Backend]], bool]:
    """Whether selection has no reason of this code against a request that needs a capability."""

    def ask(cls: type[Backend]) -> bool:
        shape = {name: value for name, value in changes.items() if name in LayerShape.__slots__}
        modes = {name: value for name, value in changes.items() if name not in shape}
        targets = {"cpu": "cpu", "cuda": "sm_90", "rocm": "gfx942", "xpu": "pvc"}
        request = hal.Request(
            LayerShape(layer_id=0, kind="attention", **(LAYER | shape)),
            hal.Device.from_arch(targets[cls.platform]),
            dtype or cls.capabilities.dtypes[0],
            **modes,
        )
        return code not in {reason.code for reason in explain_refusal(cls, request)}

    return ask


PROBES = {
    "window": Probe(run_paged(lambda p, k: p - 3 < k <= p, window=3), declares("window", window=3)),
    "chunk": Probe(run_paged(lambda p, k: k <= p and k // 4 == p // 4, chunk=4), declares("chunk", chunk=4)),
    "softcap": Probe(run_paged(softcap=0.7), declares("softcap", softcap=0.7)),
    "non_causal": Probe(run_paged(lambda _p, _k: True, causal=False), declares("causal", causal=False)),
    "lse": Probe(run_lse, declares("lse", need_lse=True)),
    "sink": Probe(run_sink, declares("sink", sink=True)),
    "masked_varlen": Probe(run_masked_varlen, lambda cls: cls.capabilities.masked_varlen),
    "max_index_pool": Probe(run_pools, lambda cls: cls.capabilities.max_index_pool > 1),
    "deterministic": Probe(run_ties, declares("deterministic", deterministic=True)),
    "key_ranges": Probe(run_ranges, lambda cls: cls.capabilities.key_ranges),
    "dcp": Probe(run_shard, lambda cls: cls.capabilities.dcp),
    "latent": Probe(run_paged(layout="latent"), lambda cls: "latent" in cls.capabilities.kv_layouts.get("mla", ())),
    "page_of_1": Probe(run_paged(size=1), declares("block_size", block_size=1)),
    "page_of_48": Probe(run_paged(size=48), declares("block_size", block_size=48)),
    "head_dim_24": Probe(run_paged(width=24), declares("head_dim", head_dim=24, v_head_dim=24)),
    **{
        f"in_{dtype}": Probe(run_paged(dtype=dtype), declares("dtype", dtype=dtype))
        for dtype in ("bfloat16", "float16", "float32", "float64")
    },
}


def verdict(probe: Probe, backend: Backend) -> str:
    """right, wrong, or refused: with an error of hal's own, or because the base class has no such call."""
    try:
        return "right" if probe.run(backend) else "wrong"
    except (HalError, NotImplementedError):
        return "refused"


def differences(backend: Backend) -> dict[str, str]:
    """Capabilities whose declaration and whose run disagree, with the run's verdict."""
    found = {name: (probe.is_declared(type(backend)), verdict(probe, backend)) for name, probe in PROBES.items()}
    return {name: seen for name, (declared, seen) in found.items() if seen != ("right" if declared else "refused")}


def test_declarations_are_what_the_calls_do(target) -> None:
    assert differences(target.backend(target.device)) == {}


def test_no_backend_declares_what_no_call_takes(target) -> None:
    """No call has a bias of positions among its arguments."""
    assert target.backend.capabilities.position_biases == frozenset()


class Reference(ReferenceBackend):
    """The reference in the types that every probe tries."""

    name = "cpu:honest"


def altered(**changes: Any) -> type[Backend]:
    return type("Altered", (Reference,), {"capabilities": replace(Reference.capabilities, **changes)})


UNDECLARED = {
    "window": {"window": False},
    "chunk": {"chunk": False},
    "softcap": {"softcap": False},
    "non_causal": {"non_causal": False},
    "lse": {"lse": False},
    "sink": {"sink": False},
    "masked_varlen": {"masked_varlen": False},
    "max_index_pool": {"max_index_pool": 1},
    "deterministic": {"deterministic": False},
    "key_ranges": {"key_ranges": False},
    "dcp": {"dcp": False},
    "head_dim_24": {"head_dims": frozenset({WIDTH})},
    "page_of_1": {"block_size_multiple": 48},
    "in_float16": {"dtypes": ("float32", "bfloat16", "float64")},
}


@pytest.mark.parametrize("name", UNDECLARED)
def test_a_capability_that_is_there_and_not_declared_is_found(name: str) -> None:
    backend = altered(**UNDECLARED[name])(hal.Device.from_arch("cpu"))
    assert differences(backend) == {name: "right"}


def without(call: str, *options: str) -> type[Backend]:
    """The reference with a call that takes some options, or parts of its values, and does nothing with them."""

    def forget(given: Any) -> Any:
        if isinstance(given, Masking | VarlenBatch):
            defaults = {each.name: each.default for each in fields(given) if each.name in options}
            return replace(given, **defaults)
        return given

    def ignore(self: Backend, *args: Any, **kwargs: Any) -> Any:
        kept = {name: hal.Parallel() if name == "parallel" else forget(value) for name, value in kwargs.items()}
        return getattr(Reference, call)(self, *map(forget, args), **kept)

    return type("Without", (Reference,), {call: ignore})


def refusing(call: str) -> type[Backend]:
    def refuse(self: Backend, *args: Any, **kwargs: Any) -> Any:
        raise hal.BackendError("not this one")

    return type("Refusing", (Reference,), {call: refuse})


@pytest.mark.parametrize(
    ("name", "cls", "seen"),
    [
        ("window", without("paged_attention", "window"), "wrong"),
        ("chunk", without("paged_attention", "chunk"), "wrong"),
        ("softcap", without("paged_attention", "softcap"), "wrong"),
        ("non_causal", without("paged_attention", "causal"), "wrong"),
        ("masked_varlen", without("varlen_attention", "selected", "first_key"), "wrong"),
        ("dcp", without("rows_from_topk", "parallel"), "wrong"),
        ("sink", refusing("apply_sink"), "refused"),
        ("max_index_pool", refusing("expand_pools"), "refused"),
        ("deterministic", refusing("select_topk"), "refused"),
    ],
)
def test_a_capability_that_is_declared_and_not_there_is_found(name: str, cls: type[Backend], seen: str) -> None:
    assert differences(cls(hal.Device.from_arch("cpu"))) == {name: seen}


DECOYS = st.dictionaries(
    st.sampled_from(["hidden_size", "num_attention_heads", "num_hidden_layers", "head_dim", "index_topk", "sliding_window"]),
    st.sampled_from([1, 3, 7, 48]),
    max_size=4,
)


@st.composite
def flat_configs(draw) -> dict[str, Any]:
    """A sound config: plain attention with or without windows, MLA, or MLA with an indexer."""
    heads = draw(st.sampled_from([2, 4, 8]))
    layers = draw(st.integers(1, 4))
    config: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": 64,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([1, 2])),
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    kind = draw(st.sampled_from(["plain", "windows", "mla", "sparse"]))
    if kind == "windows":
        names = st.sampled_from(["full_attention", "sliding_attention"])
        config |= {"sliding_window": draw(st.sampled_from([8, 128]))}
        config["layer_types"] = draw(st.lists(names, min_size=layers, max_size=layers))
    elif kind != "plain":
        config |= {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    if kind == "sparse":
        config |= {"index_topk": draw(st.sampled_from([4, 2048])), "index_n_heads": 2, "index_head_dim": 16}
    return config


@BOUNDED
@given(config=flat_configs(), vision=DECOYS, place=st.sampled_from(["text_config", "llm_config", "language_config"]))
def test_a_nested_config_has_the_flat_ones_geometry_and_selection(
    config: dict[str, Any], vision: dict[str, int], place: str
) -> None:
    """A vision tower's own widths, and a root without any, change nothing."""
    flat, nested = read_shape(config), read_shape({place: config, "vision_config": vision})
    assert nested.layers == flat.layers
    assert (nested.index_topk, nested.is_mla, nested.is_sparse) == (flat.index_topk, flat.is_mla, flat.is_sparse)
    for one, other in zip(flat.layers, nested.layers, strict=True):
        answers = [
            hal.supports_combination(hal.Request(layer, hal.Device.from_arch("sm_90"), "bfloat16")) for layer in (one, other)
        ]
        assert answers[0] == answers[1]
