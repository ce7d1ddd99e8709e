"""Tensors of a wrong type, shape or place are refused by name before an operator reads or writes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

import hal
from hal import ops
from hal.common.contract.call_values import IndexerChunk

from .helpers.samples import HEADS, INDEX, KV, WIDTH, Recorded, make_batch, make_cache, random, record, samples

EVERY = pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in samples(4)])
OF_INDICES = pytest.mark.parametrize(
    "call", [pytest.param(call, id=name) for name, call in samples(4) if not name.startswith(("merge_states", "apply_sink"))]
)
ELSEWHERE = {torch.int32: torch.int64, torch.int64: torch.int32}


def change_each(found: Recorded, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Iterator[tuple[Any, Any]]:
    """The arguments and keywords with one tensor changed, for each tensor that the change concerns."""
    for position, tensor in enumerate(tree_leaves((found.arguments, found.keywords))):
        changed = change(tensor) if isinstance(tensor, torch.Tensor) else None
        if changed is not None:
            places = iter(range(10**6))
            yield tree_map(lambda leaf: changed if next(places) == position else leaf, (found.arguments, found.keywords))  # noqa: B023


def refuse_each(found: Recorded, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Every such call is refused by a typed error, and no tensor is another afterwards."""
    given = [leaf for leaf in tree_leaves((found.arguments, found.keywords)) if isinstance(leaf, torch.Tensor)]
    before = [tensor.clone() for tensor in given]
    count = 0
    for arguments, keywords in change_each(found, change):
        count += 1
        with pytest.raises(hal.HalError):
            found.operator(*arguments, **keywords)
    assert count
    assert all(
        torch.equal(was.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8))
        for was, tensor in zip(before, given, strict=True)
    )


@OF_INDICES
def test_an_index_of_another_width_is_refused(call: Callable[[], Any]) -> None:
    found = record(call)
    refuse_each(found, lambda tensor: tensor.to(ELSEWHERE[tensor.dtype]) if tensor.dtype in ELSEWHERE else None)


@OF_INDICES
def test_an_index_of_another_rank_is_refused(call: Callable[[], Any]) -> None:
    found = record(call)
    refuse_each(found, lambda tensor: tensor[None] if tensor.dtype in ELSEWHERE else None)


@EVERY
def test_a_tensor_on_another_device_is_refused(call: Callable[[], Any]) -> None:
    """While a graph is traced and when it runs; a tensor alone in its call has no other to differ from."""
    found = record(call)
    refuse_each(found, lambda tensor: tensor.to("meta"))


@OF_INDICES
def test_a_trace_refuses_what_the_run_refuses(call: Callable[[], Any]) -> None:
    found = record(call)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for arguments, keywords in change_each(found, lambda t: t.to(ELSEWHERE[t.dtype]) if t.dtype in ELSEWHERE else None):
            fakes = tree_map(
                lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, (arguments, keywords)
            )
            with pytest.raises(hal.LayoutError):
                found.operator(*fakes[0], **fakes[1])


def scores(**changes: Any) -> torch.Tensor:
    chunk = IndexerChunk(**{"token_start": 0, "token_stop": 4, "request_start": 0, "request_stop": 2, "max_seq_len": 7} | changes)
    return ops.index_scores(random(4, 2, WIDTH), random(4, 2), make_cache(INDEX), make_batch(4), chunk)


def paged(**changes: Any) -> Any:
    return ops.paged_attention(random(4, HEADS, WIDTH), make_cache(KV), make_batch(4), **{"softmax_scale": 1.0} | changes)


LENGTHS = torch.tensor([7, 7], dtype=torch.int32)
REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "whole_numbers_as_queries": (
        lambda: ops.apply_sink(random(2, 4, 8).int(), random(2, 4), random(4)),
        r"apply_sink: out is int32 \[2, 4, 8\]",
    ),
    "no_tensor": (lambda: ops.apply_sink(random(2, 4, 8), None, random(4)), "lse is a NoneType"),
    "a_sink_for_all_heads": (
        lambda: ops.apply_sink(random(2, 4, 8), random(2, 4), random(1)),
        r"sink .* \[1\].*expected .*\[4\]",
    ),
    "results_of_other_heads": (
        lambda: ops.merge_states(random(2, 4, 8), random(2, 4), random(2, 1, 8), random(2, 1)),
        r"out_b .*\[2, 1, 8\].*expected .*\[2, 4, 8\]",
    ),
    "too_few_requests": (
        lambda: ops.paged_attention(
            random(4, HEADS, WIDTH), make_cache(KV), replace(make_batch(4), seq_lens=LENGTHS[:1]), softmax_scale=1.0
        ),
        r"query_start_loc is int32 \[3\].*expected int32 \[2\]",
    ),
    "one_place_for_all": (lambda: paged(out=random(1, HEADS, WIDTH + 2).expand(4, -1, -1)), "strides.*place of its own"),
    "a_chunk_past_the_batch": (lambda: scores(token_stop=9), "tokens 0 to 9.*has 4 tokens"),
    "a_chunk_of_no_request": (lambda: scores(request_stop=3), "requests 0 to 3.*2 requests"),
    "fewer_than_no_keys": (lambda: ops.select_topk(random(2, 7), LENGTHS, -1, 4), "k is -1"),
    "pools_of_nothing": (lambda: ops.expand_pools(LENGTHS[:, None], LENGTHS, 0, 8), "pool is 0"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_not_fit_is_refused_with_both_sides(name: str) -> None:
    make, words = REFUSALS[name]
    with pytest.raises(hal.LayoutError, match=words):
        make()


@pytest.mark.parametrize(("name", "value"), [("window", 0), ("chunk", -4), ("softcap", 0.0)])
def test_an_operator_checks_the_flat_masking_that_no_value_has_checked(name: str, value: float) -> None:
    found = record(lambda: paged())
    names = [argument.name for argument in found.operator._schema.arguments]
    given = [value if each == name else argument for each, argument in zip(names, found.arguments, strict=False)]
    with pytest.raises(hal.LayoutError, match=f"{name} is {value}"):
        found.operator(*given, **found.keywords)
