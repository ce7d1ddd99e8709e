"""Which backend an operator calls, and what it says to input that no call could serve."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import hal
from hal import ops
from hal.common.backends.registry import backends
from hal.common.contract.backend import Backend
from hal.common.contract.call_values import KVCache, PagedBatch
from hal.ops import caches, calls, merging, scores
from hal.ops.calls import find_calls

from .helpers.samples import INDEX, KV, LATENT, PAGE, make_batch, make_cache, random, record, samples

CPU = torch.device("cpu")
BATCH_FIELDS = (
    torch.zeros(2, dtype=torch.int32),
    torch.zeros(1, dtype=torch.int32),
    torch.zeros(1, 3, dtype=torch.int32),
    5,
    7,
    1,
    None,
    *[torch.ones(4, dtype=torch.int32)] * 2,
)
"""A value for every field of PagedBatch, in their order; the memo does not travel."""


def paged(backend: str | None = None, **changes: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    given = {"q": random(4, 4, 8), "cache": make_cache(KV), "batch": make_batch(4), **changes}
    return ops.paged_attention(**given, softmax_scale=0.3, backend=backend)


def test_the_default_is_the_portable_backend_of_the_tensors_device() -> None:
    assert find_calls(None, CPU).name == "cpu"
    assert find_calls("cpu", CPU).device.torch_device == "cpu"
    torch.testing.assert_close(paged()[0], paged("cpu")[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("target", "where", "name"),
    [
        ("cuda:sm_90", "cuda:1", "cuda:triton"),
        ("rocm:gfx942", "cuda:1", "rocm:triton"),
        ("xpu:pvc", "xpu:1", "xpu:triton"),
        ("cpu", "cpu", "cpu"),
    ],
)
def test_the_default_is_found_on_the_device_that_is_here(
    target: str, where: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = (hal.Device.from_arch(target, torch_device=where), hal.Device.from_arch("cpu"))
    monkeypatch.setattr(calls, "detect", lambda: here)
    found = find_calls.__wrapped__(None, torch.device(where))
    assert (found.name, found.device) == (name, here[0])
    assert find_calls.__wrapped__("cpu", CPU).name == "cpu"
    with pytest.raises(hal.BackendError, match=r"tensors are on cuda:7 and no device of this machine is theirs"):
        find_calls.__wrapped__(None, torch.device("cuda:7"))


def test_the_calls_of_a_backend_are_looked_up_once() -> None:
    assert find_calls("cpu", CPU) is find_calls("cpu", CPU)


def test_a_name_that_is_not_registered_is_refused_with_the_names_that_are() -> None:
    with pytest.raises(ValueError, match=r"unknown backend 'cpu:fast'; registered: .*cpu"):
        paged("cpu:fast")


def test_a_backend_of_another_platform_is_refused_with_those_that_serve_the_device() -> None:
    with pytest.raises(hal.BackendError, match=r"tensors are on cpu and cuda:triton runs on cuda devices .*: cpu"):
        paged("cuda:triton")


@pytest.mark.parametrize("name", [name for name, cls in backends().items() if cls.capabilities is None])
def test_a_backend_that_is_not_written_is_refused(name: str) -> None:
    with pytest.raises(hal.BackendError, match="not written"):
        paged(name)


def test_a_result_that_is_an_input_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    class HandsBack(Backend):
        def apply_sink(self, out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
            return out

    monkeypatch.setattr(merging, "find_calls", lambda *_: HandsBack(find_calls("cpu", CPU).device))
    out = random(2, 4, 8)
    result = ops.apply_sink(out, random(2, 4), random(4))
    assert result.data_ptr() != out.data_ptr()
    assert torch.equal(result, out)


BAD: dict[str, Callable[[Any], object]] = {
    "write_cache-parts_of_other_shapes": lambda c: c.write_cache(make_cache(KV), torch.tensor([1]), random(1, 2, 9)),
    "write_cache-too_few_slots": lambda c: c.write_cache(make_cache(INDEX), torch.tensor([1]), random(2, 8)),
    "paged_attention-q_of_another_width": lambda c: c.paged_attention(
        random(4, 4, 9), make_cache(KV), make_batch(4), softmax_scale=1.0
    ),
    "paged_attention-out_of_another_shape": lambda c: c.paged_attention(
        random(4, 4, 8), make_cache(KV), make_batch(4), softmax_scale=1.0, out=random(4, 4, 8)
    ),
    "paged_attention-an_index_cache": lambda c: c.paged_attention(
        random(4, 4, 8), make_cache(INDEX), make_batch(4), softmax_scale=1.0
    ),
    "varlen_attention-other_heads": lambda c: c.varlen_attention(
        random(2, 3, 8),
        random(2, 2, 8),
        random(2, 2, 8),
        hal.VarlenBatch(
            q_start_loc=torch.tensor([0, 2], dtype=torch.int32),
            k_start_loc=torch.tensor([0, 2], dtype=torch.int32),
            max_query_len=2,
            max_seq_len=2,
        ),
        softmax_scale=1.0,
    ),
    "sparse_mla-no_segments": lambda c: c.sparse_mla(random(2, 4, 12), [], kv_lora_rank=8, softmax_scale=1.0),
    "select_topk-k_above_width": lambda c: c.select_topk(random(2, 7), torch.tensor([7, 7], dtype=torch.int32), 5, 4),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_the_direct_calls_error(name: str) -> None:
    with pytest.raises(hal.HalError) as direct:
        BAD[name](hal.kernels("cpu"))
    with pytest.raises(hal.HalError) as through:
        BAD[name](ops)
    assert type(through.value) is type(direct.value)
    assert str(through.value) == str(direct.value)


def test_a_refused_write_leaves_the_cache_as_it_was() -> None:
    cache = make_cache(LATENT)
    before = cache.storage.clone()
    with pytest.raises(hal.LayoutError):
        ops.write_cache(cache, torch.tensor([1, 2]), random(2, 8), random(2, 5))
    assert torch.equal(cache.storage, before)


@pytest.mark.parametrize(
    "text", ["", "kv", "[1]", '{"name":"kv"}', '{"name":"kv","dtype":"float32","parts":[["a"]]}', '{"unknown":1}']
)
def test_a_text_that_describes_no_layout_is_refused(text: str) -> None:
    cache = make_cache(KV)
    with pytest.raises(hal.LayoutError, match="describes no cache layout"):
        torch.ops.hal.gather_cache(cache.storage, None, text, PAGE, torch.zeros(1, dtype=torch.int32), None)


def test_a_storage_that_is_no_cache_is_refused() -> None:
    with pytest.raises(hal.LayoutError, match="storage has shape"):
        torch.ops.hal.gather_cache(random(4, 8), None, INDEX.description, PAGE, torch.zeros(1, dtype=torch.int32), None)


TAKES_INTEGERS = ("topk", "gather_cache-indexer_fp8")


@pytest.mark.parametrize(
    "call", [pytest.param(call, id=name) for name, call in samples(4) if not any(word in name for word in TAKES_INTEGERS)]
)
def test_an_input_that_requires_a_gradient_is_refused(call: Callable[[], Any]) -> None:
    found = record(call)
    arguments = tree_map(_tracked, found.arguments)
    with pytest.raises(hal.BackendError, match="no backward"):
        found.operator(*arguments, **found.keywords)
    with torch.no_grad():
        found.operator(*arguments, **found.keywords)


def _tracked(value: Any) -> Any:
    return value.clone().requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def test_import_hal_loads_no_operator_and_hal_ops_is_there_when_asked_for() -> None:
    code = "import sys, hal; assert 'torch' not in sys.modules; hal.ops.paged_attention; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_cache_is_the_same_to_the_operator_as_to_the_call() -> None:
    cache = make_cache(LATENT, gap=3)
    seen: list[KVCache] = []

    class Looks(Backend):
        def gather_cache(self, cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen.append(cache)
            return cache.layout.unpack(cache.storage.new_zeros(len(rows), cache.layout.width))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches, "find_calls", lambda *_: Looks(find_calls("cpu", CPU).device))
        ops.gather_cache(cache, torch.zeros(1, dtype=torch.int32))
    (received,) = seen
    assert replace(received, storage=cache.storage) == cache
    assert received.storage.data_ptr() == cache.storage.data_ptr()
    assert received.page_stride == cache.page_stride


def test_a_batch_is_the_same_to_the_operator_as_to_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {each.name: value for each, value in zip(fields(PagedBatch), BATCH_FIELDS, strict=True)}
    seen: list[PagedBatch] = []

    class Looks(Backend):
        def index_scores(
            self, iq: torch.Tensor, weights: torch.Tensor, cache: KVCache, batch: PagedBatch, chunk: object = None
        ) -> torch.Tensor:
            seen.append(batch)
            return iq.new_empty(iq.shape[0], batch.max_seq_len)

    monkeypatch.setattr(scores, "find_calls", lambda *_: Looks(find_calls("cpu", CPU).device))
    ops.index_scores(random(4, 2, 8), random(4, 2), make_cache(INDEX), PagedBatch(**given))
    (received,) = seen
    assert {each.name: getattr(received, each.name) for each in fields(PagedBatch)} == given
