"""Each way a declaration and a request can differ gives its own code, with both sides' values; all are collected."""

from __future__ import annotations

from typing import Any

import pytest

import hal
from hal.common.backends.judging import explain_refusal

from .helpers.fakes import ask, codes, gqa_layer, make_backend, mla_layer, sparse_layer

EVERYTHING: dict[str, Any] = {
    "window": True,
    "sink": True,
    "softcap": True,
    "non_causal": True,
    "chunk": True,
    "position_biases": frozenset({"alibi"}),
    "dcp": True,
    "key_ranges": True,
    "lse": True,
    "deterministic": True,
    "graphs": "always",
    "max_spec_tokens": 4,
    "max_index_pool": 4,
}

DIFFERENCES = {
    "arch": ({"archs": frozenset({"sm_100"})}, ask(), "arch", ["sm_90", "sm_100"]),
    "kind": ({"families": frozenset({"mla"})}, ask(), "kind", ["attention", "mla"]),
    "sparse": ({"families": frozenset({"mla"})}, ask(sparse_layer()), "kind", ["sparse_mla", "mla"]),
    "dtype": ({"dtypes": ("float16",)}, ask(), "dtype", ["bfloat16", "float16"]),
    "kv_layout": ({}, ask(kv_layout="kv_fp8"), "kv_layout", ["kv_fp8", "kv"]),
    "layout_of_another_family": ({}, ask(kv_layout="latent"), "kv_layout", ["latent", "kv"]),
    "block_size": ({"block_size_multiple": 64}, ask(block_size=48), "block_size", ["48", "64"]),
    "head_dim": ({"head_dims": frozenset({128})}, ask(), "head_dim", ["64", "128"]),
    "v_head_dim": ({"v_head_dims": frozenset({128})}, ask(), "v_head_dim", ["64", "128"]),
    "many_heads": ({"max_heads": 4}, ask(), "heads", ["8", "at most 4"]),
    "uneven_heads": ({}, ask(gqa_layer(num_kv_heads=1), parallel=hal.Parallel(tp=3)), "heads", ["8 query heads over 3"]),
    "uneven_kv_heads": (
        {},
        ask(gqa_layer(num_heads=12, num_kv_heads=6), parallel=hal.Parallel(tp=4)),
        "heads",
        ["6 KV heads over 4"],
    ),
    "topk": ({"topk_multiple": 512}, ask(sparse_layer(topk=256)), "topk_width", ["256", "512"]),
    "pooled_keys": ({}, ask(sparse_layer(pool=4)), "topk_width", ["2176", "4"]),
    "window": ({}, ask(gqa_layer(window=128)), "window", ["128"]),
    "chunk": ({}, ask(gqa_layer(chunk=8192)), "chunk", ["8192"]),
    "softcap": ({}, ask(gqa_layer(softcap=50.0)), "softcap", ["50.0"]),
    "sink": ({}, ask(gqa_layer(sink=True)), "sink", ["sinks"]),
    "causal": ({}, ask(gqa_layer(causal=False)), "causal", ["False"]),
    "alibi": ({}, ask(gqa_layer(position_bias="alibi")), "position_bias", ["alibi"]),
    "relative": (
        {"position_biases": frozenset({"alibi"})},
        ask(gqa_layer(position_bias="relative")),
        "position_bias",
        ["relative", "alibi"],
    ),
    "dcp": ({}, ask(parallel=hal.Parallel(dcp=2)), "dcp", ["2"]),
    "key_ranges": ({"dcp": True}, ask(parallel=hal.Parallel(dcp=2)), "dcp", ["2", "key ranges"]),
    "interleave": (
        {"dcp": True, "key_ranges": True},
        ask(block_size=16, parallel=hal.Parallel(dcp=2, interleave=6)),
        "block_size",
        ["16", "6"],
    ),
    "lse": ({}, ask(need_lse=True), "lse", ["LSE"]),
    "deterministic": ({}, ask(deterministic=True), "deterministic", ["deterministic"]),
    "graphs": ({"graphs": "uniform_single"}, ask(graphs="uniform_batch"), "graphs", ["uniform_batch", "uniform_single"]),
    "spec_decode": ({"max_spec_tokens": 1}, ask(num_spec_tokens=3), "spec_decode", ["3", "1"]),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_the_one_reason(name: str) -> None:
    declared, request, code, words = DIFFERENCES[name]
    (reason,) = explain_refusal(make_backend("cuda:fake", **declared), request)
    assert reason.code == code
    assert [word for word in words if word not in str(reason)] == []


@pytest.mark.parametrize(
    "name", [name for name in DIFFERENCES if DIFFERENCES[name][2] not in {"arch", "kind", "dtype", "kv_layout"}]
)
def test_the_same_request_is_served_where_the_declaration_allows_it(name: str) -> None:
    """Otherwise the refusal above would not be about the capability it names."""
    _, request, code, _ = DIFFERENCES[name]
    allowed = {**EVERYTHING, "position_biases": frozenset({"alibi", "relative"})}
    reasons = explain_refusal(make_backend("cuda:fake", **allowed), request)
    if name in {"uneven_heads", "uneven_kv_heads", "interleave"}:
        assert codes(reasons) == [code]  # no declaration can make these numbers fit
    else:
        assert reasons == ()


def test_compressed_layers_are_told_apart() -> None:
    layer = hal.config.LayerShape(layer_id=0, kind="compressed", num_heads=8, num_kv_heads=1, head_dim=64, compress_ratio=4)
    (reason,) = explain_refusal(make_backend("cuda:fake"), ask(layer))
    assert reason.code == "compressed"
    assert "4" in str(reason)


@pytest.mark.parametrize("kind", ["pooled", "compressed"])
def test_layers_whose_tokens_share_rows_are_served_on_one_rank(kind: str) -> None:
    layer = sparse_layer(pool=4)
    if kind == "compressed":
        layer = hal.config.LayerShape(layer_id=0, kind="compressed", num_heads=8, num_kv_heads=1, head_dim=64, compress_ratio=4)
    (reason,) = [
        reason
        for reason in explain_refusal(make_backend("cuda:fake", **EVERYTHING), ask(layer, parallel=hal.Parallel(dcp=2)))
        if reason.code != "compressed"
    ]
    assert reason.code == "dcp"
    assert "2 decode-context ranks, it takes one where tokens share cache rows" in str(reason)


def test_every_reason_of_a_declaration_is_collected() -> None:
    layer = gqa_layer(window=8, chunk=64, softcap=5.0, sink=True, causal=False, position_bias="alibi")
    modes = {"need_lse": True, "deterministic": True, "graphs": "always", "num_spec_tokens": 1}
    widths = frozenset({32})
    fake = make_backend("cuda:fake", archs=frozenset({"sm_80"}), head_dims=widths, v_head_dims=widths, max_heads=1)
    found = codes(explain_refusal(fake, ask(layer, dtype="float32", kv_layout="kv_fp8", **modes)))
    of_the_layer = ["head_dim", "v_head_dim", "heads", "window", "chunk", "softcap", "sink", "causal", "position_bias"]
    assert sorted(found) == sorted(["arch", "dtype", "kv_layout", *of_the_layer, "lse", "deterministic", "graphs", "spec_decode"])
    assert found[0] == "arch"


def test_a_wrong_kind_does_not_hide_a_wrong_dtype() -> None:
    request = ask(dtype="float32")
    assert set(codes(explain_refusal(make_backend("cuda:fake", families=frozenset({"mla"})), request))) >= {"kind", "dtype"}


def test_too_many_ranks_do_not_hide_an_interleave_that_does_not_fit_the_page() -> None:
    request = ask(block_size=16, parallel=hal.Parallel(dcp=2, interleave=6))
    assert set(codes(explain_refusal(make_backend("cuda:fake"), request))) == {"dcp", "block_size"}


def test_another_platforms_backend_has_one_reason() -> None:
    (reason,) = explain_refusal(make_backend("rocm:fake", platform="rocm"), ask(gqa_layer(window=8), dtype="float32"))
    assert reason.code == "platform"
    assert "rocm" in str(reason)
    assert "cuda:sm_90" in str(reason)


def test_a_backend_without_calls_is_not_built() -> None:
    unwritten = type("Unwritten", (hal.Backend,), {"name": "cuda:unwritten", "platform": "cuda"})
    (reason,) = explain_refusal(unwritten, ask(dtype="float32"))
    assert reason.code == "not_built"
    assert "cuda:unwritten" in str(reason)


@pytest.mark.parametrize("level", ["never", "uniform_single", "uniform_batch", "always"])
def test_graph_levels_are_ordered(level: str) -> None:
    levels = ["never", "uniform_single", "uniform_batch", "always"]
    fake = make_backend("cuda:fake", graphs=level)
    served = [wanted for wanted in levels if not explain_refusal(fake, ask(graphs=wanted))]
    assert served == levels[: levels.index(level) + 1]


def test_a_replicated_kv_head_is_served() -> None:
    assert (
        explain_refusal(make_backend("cuda:fake"), ask(gqa_layer(num_heads=16, num_kv_heads=2), parallel=hal.Parallel(tp=8)))
        == ()
    )


def test_latent_is_replicated_whatever_the_ranks() -> None:
    assert explain_refusal(make_backend("cuda:fake"), ask(mla_layer(), parallel=hal.Parallel(tp=8))) == ()


def test_the_backends_own_reasons_are_added() -> None:
    own = hal.Reason("memory", "1 GiB", "2 GiB")
    fake = make_backend("cuda:fake", explain_refusal=classmethod(lambda *_: (own,)))
    assert codes(explain_refusal(fake, ask(gqa_layer(window=4)))) == ["window", "memory"]
