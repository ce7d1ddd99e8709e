"""What torch asks of an operator: schema, mutation, shapes without data, functionalisation, no results that alias inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.library import opcheck
from torch.utils._pytree import tree_leaves, tree_map

from hal import ops
from hal.common.contract.backend import CALLS, Backend

from .helpers.samples import Recorded, record, samples

EVERY = pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in samples(4, 1, 0)])
SOME_AND_NONE = pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in samples(4, 0)])


def test_every_call_of_the_contract_is_an_operator() -> None:
    assert set(ops.__all__) == CALLS
    assert all(hasattr(torch.ops.hal, call) for call in ops.__all__)


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_function_takes_what_the_call_takes_and_a_backend(call: str) -> None:
    _, *wanted = inspect.signature(getattr(Backend, call)).parameters.values()
    *found, backend = inspect.signature(getattr(ops, call)).parameters.values()
    assert [(each.name, each.kind, each.default) for each in found] == [(each.name, each.kind, each.default) for each in wanted]
    assert (backend.name, backend.kind, backend.default) == ("backend", inspect.Parameter.KEYWORD_ONLY, None)


def test_every_overload_is_sampled() -> None:
    sampled = {record(call).operator for _, call in samples(4)}
    packets = [getattr(torch.ops.hal, call) for call in ops.__all__]
    assert sampled == {getattr(packet, name) for packet in packets for name in packet.overloads()}


@SOME_AND_NONE
def test_an_operator_passes_what_torch_checks_of_operators(call: Callable[[], Any]) -> None:
    found = record(call)
    opcheck(found.operator, found.arguments, found.keywords, test_utils=_checks(found))


@EVERY
def test_only_what_is_declared_mutable_changes(call: Callable[[], Any]) -> None:
    found = record(call)
    names = [argument.name for argument in found.operator._schema.arguments]
    mutable = {argument.name for argument in found.operator._schema.arguments if argument.is_write}
    given = dict(zip(names, found.arguments, strict=False)) | found.keywords
    before = {name: [_bytes(tensor) for tensor in tree_leaves(value)] for name, value in given.items()}
    found.operator(*found.arguments, **found.keywords)
    changed = {name for name, value in given.items() if [_bytes(tensor) for tensor in tree_leaves(value)] != before[name]}
    assert changed <= mutable


@EVERY
def test_tensors_without_data_give_the_same_shapes(call: Callable[[], Any]) -> None:
    found = record(call)
    arguments, keywords = tree_map(_to_meta, (found.arguments, found.keywords))
    traced = tree_leaves(found.operator(*arguments, **keywords))
    real = tree_leaves(found.operator(*found.arguments, **found.keywords))
    assert [_describe(tensor) for tensor in traced] == [_describe(tensor) for tensor in real]
    assert all(tensor is None or tensor.device.type == "meta" for tensor in traced)


@EVERY
def test_no_result_shares_memory_with_an_input_or_another_result(call: Callable[[], Any]) -> None:
    found = record(call)
    results = [_where(tensor) for tensor in tree_leaves(found.operator(*found.arguments, **found.keywords)) if _has_data(tensor)]
    inputs = {_where(tensor) for tensor in tree_leaves((found.arguments, found.keywords)) if _has_data(tensor)}
    assert len(set(results)) == len(results)
    assert not inputs & set(results)


def _checks(found: Recorded) -> tuple[str, ...]:
    """All of opcheck's, but for the schema's where a tensor is fp8: that one multiplies tensors to compare them."""
    every = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    tensors = [value for value in tree_leaves((found.arguments, found.keywords)) if isinstance(value, torch.Tensor)]
    has_fp8 = any(tensor.is_floating_point() and tensor.itemsize == 1 for tensor in tensors)
    return every[1:] if has_fp8 else every


def _bytes(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return bytes(value.contiguous().view(torch.uint8).flatten().tolist()) if value.numel() else b""


def _to_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _describe(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    # The stride of a dimension with no second element leads nowhere, and torch leaves it open.
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return tensor.dtype, tuple(tensor.shape), strides


def _has_data(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0


def _where(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
