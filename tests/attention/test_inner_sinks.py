"""A layer's sink: inside the call that attends where its backend takes it there, behind it where not, the same result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hal import BackendError, Device, kernels
from hal.common.backends.registry import backends
from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.capabilities import SINK_CALLS
from hal.common.contract.layouts import attention_layout, latent_layout
from hal.common.contract.records import allocate_pages
from hal.common.contract.sinks import take_sinks
from hal.common.vendor import VendorBackend
from hal.cpu.backend import CPUBackend

GENERATOR = torch.Generator().manual_seed(3)
SINK = torch.tensor([0.5, -1.0, 2.0, float("-inf")])
BATCH = PagedBatch(
    query_start_loc=torch.tensor([0, 1, 3], dtype=torch.int32),
    seq_lens=torch.tensor([5, 2], dtype=torch.int32),
    block_table=torch.tensor([[0, 1], [2, -1]], dtype=torch.int32),
    max_query_len=2,
    max_seq_len=5,
)


class Outside(CPUBackend):
    """The CPU's calls without a sink in any of them."""

    name = "cpu:outside"
    capabilities = replace(CPUBackend.capabilities, inner_sinks=frozenset())

    def paged_attention(self, *arguments: Any, **named: Any) -> Any:
        assert "sink" not in named
        return super().paged_attention(*arguments, **named)

    def sparse_mla(self, *arguments: Any, **named: Any) -> Any:
        assert "sink" not in named
        return super().sparse_mla(*arguments, **named)


def filled(layout: Any) -> KVCache:
    cache = KVCache(allocate_pages(layout, 3, 4, "cpu"), layout, 4, 4)
    cache.storage.normal_(generator=GENERATOR)
    return cache


def paged(backend: Any, **options: Any) -> Any:
    q = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1))
    run = take_sinks(backend, "paged_attention", backend.apply_sink)
    return run(q, HEADS, BATCH, softmax_scale=0.4, **options)


def sparse(backend: Any, **options: Any) -> Any:
    q = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(1))
    segment = Segment(LATENT, torch.tensor([[3, 1], [-1, -1]], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32))
    run = take_sinks(backend, "sparse_mla", backend.apply_sink)
    return run(q, [segment], kv_lora_rank=8, softmax_scale=0.4, **options)


HEADS, LATENT = filled(attention_layout(2, 8, 8, "float32")), filled(latent_layout(8, 4, "float32"))
CPU = kernels("cpu")
OUTSIDE = Outside(CPU.device)


@pytest.mark.parametrize("need_lse", [True, False], ids=["lse", "no_lse"])
@pytest.mark.parametrize("gives_out", [True, False], ids=["out", "own_out"])
@pytest.mark.parametrize("call", [paged, sparse], ids=["paged_attention", "sparse_mla"])
def test_a_sink_gives_the_same_wherever_it_is_applied(call: Any, gives_out: bool, need_lse: bool) -> None:
    plain, lse = call(CPU, need_lse=True)
    wanted = CPU.apply_sink(plain, lse, SINK)
    for backend in (CPU, OUTSIDE):
        out = torch.full_like(plain, torch.nan) if gives_out else None
        found, logs = call(backend, sink=SINK, need_lse=need_lse, out=out)
        assert out is None or found is out
        torch.testing.assert_close(found, wanted)
        # The LSE that others would be merged by leaves the sink out.
        assert logs is None if not need_lse else torch.equal(logs, lse)


@pytest.mark.parametrize("call", [paged, sparse], ids=["paged_attention", "sparse_mla"])
def test_without_a_sink_nothing_is_changed(call: Any) -> None:
    assert torch.equal(call(OUTSIDE)[0], call(CPU)[0])


ADAPTERS = sorted(name for name, cls in backends().items() if issubclass(cls, VendorBackend) and cls.capabilities is not None)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_refuses_a_sink_that_its_library_is_not_given(name: str) -> None:
    cls = backends()[name]
    assert not cls.capabilities.inner_sinks
    adapter = cls.__new__(cls)
    adapter.device = Device.from_arch(sorted(cls.capabilities.archs)[0])
    q = torch.zeros(3, 4, 8)
    calls = {
        "paged_attention": lambda: adapter.paged_attention(q, HEADS, BATCH, softmax_scale=1.0, sink=SINK),
        "sparse_mla": lambda: adapter.sparse_mla(q, [], kv_lora_rank=8, softmax_scale=1.0, sink=SINK),
    }
    for call in sorted(SINK_CALLS & cls.provides):
        with pytest.raises(BackendError, match=f"{call} takes no sink here"):
            calls[call]()
