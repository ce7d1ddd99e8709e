"""Blocks of a model under torch.compile(fullgraph=True): equal to eager, one compilation for all token counts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from hal import ops
from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.layouts import attention_layout, index_layout, latent_layout
from hal.common.contract.masking import Masking
from hal.common.contract.parallel import Parallel

HIDDEN, HEADS, KV_HEADS, WIDTH, PAGE = 24, 4, 2, 8, 4
LORA, ROPE, TOPK = 8, 4, 4
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on the CPU")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True), torch.inference_mode():
        yield
    torch._dynamo.reset()


class AttentionBlock(torch.nn.Module):
    """Projections, a cache write, paged attention, projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * WIDTH)
        self.out = torch.nn.Linear(HEADS * WIDTH, HIDDEN)

    def forward(self, hidden: torch.Tensor, cache: KVCache, slots: torch.Tensor, batch: PagedBatch) -> torch.Tensor:
        q, k, v = self.qkv(hidden).unflatten(-1, (-1, WIDTH)).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        ops.write_cache(cache, slots, k, v)
        attended, _ = ops.paged_attention(q, cache, batch, softmax_scale=0.3, masking=Masking(window=64))
        return self.out(attended.flatten(1))


class SparseBlock(torch.nn.Module):
    """Both caches' writes, index scores, the best keys, their rows and sparse MLA, its result in a given tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.Linear(HIDDEN, HEADS * (LORA + ROPE))
        self.latent = torch.nn.Linear(HIDDEN, LORA + ROPE)
        self.index = torch.nn.Linear(HIDDEN, 2 * WIDTH + 2 + WIDTH)

    def forward(
        self, hidden: torch.Tensor, caches: tuple[KVCache, KVCache], slots: torch.Tensor, batch: PagedBatch, req_id: torch.Tensor
    ) -> torch.Tensor:
        cache, keys = caches
        iq, weights, key = self.index(hidden).split([2 * WIDTH, 2, WIDTH], dim=-1)
        ops.write_cache(cache, slots, *self.latent(hidden).split([LORA, ROPE], dim=-1))
        ops.write_cache(keys, slots, key)
        scores = ops.index_scores(iq.unflatten(-1, (2, WIDTH)), weights, keys, batch)
        lengths = batch.seq_lens[req_id.long()]
        chosen = ops.select_topk(scores, lengths, TOPK, TOPK)
        rows, valid = ops.rows_from_topk(chosen, req_id, batch.block_table, batch.seq_lens, block_size=PAGE, parallel=Parallel())
        q = self.q(hidden).unflatten(-1, (HEADS, LORA + ROPE))
        out = torch.empty(hidden.shape[0], HEADS, LORA)
        segments = [Segment(cache, rows, valid)]
        _, lse = ops.sparse_mla(q, segments, kv_lora_rank=LORA, softmax_scale=0.3, need_lse=True, out=out)
        return ops.apply_sink(out, lse, torch.zeros(HEADS))


def make_cache(layout: Any) -> KVCache:
    return KVCache(torch.zeros(8, PAGE, layout.width), layout, PAGE, PAGE)


def prefill(tokens: int) -> tuple[torch.Tensor, torch.Tensor, PagedBatch, torch.Tensor]:
    """hidden, slots, batch and request ids of one request's first tokens on pages 5, 2, 7."""
    pages = torch.tensor([5, 2, 7])
    slots = (pages[:, None] * PAGE + torch.arange(PAGE)).flatten()[:tokens]
    batch = PagedBatch(
        query_start_loc=torch.tensor([0, tokens], dtype=torch.int32),
        seq_lens=torch.tensor([tokens], dtype=torch.int32),
        block_table=pages[None].int(),
        max_query_len=tokens,
        max_seq_len=tokens,
    )
    hidden = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(tokens))
    return hidden, slots, batch, torch.zeros(tokens, dtype=torch.int32)


def run_attention(block: Callable[..., torch.Tensor], tokens: int) -> tuple[torch.Tensor, ...]:
    hidden, slots, batch, _ = prefill(tokens)
    cache = make_cache(attention_layout(KV_HEADS, WIDTH, WIDTH, "float32"))
    return block(hidden, cache, slots, batch), cache.storage


def run_sparse(block: Callable[..., torch.Tensor], tokens: int) -> tuple[torch.Tensor, ...]:
    hidden, slots, batch, req_id = prefill(tokens)
    caches = make_cache(latent_layout(LORA, ROPE, "float32")), make_cache(index_layout(WIDTH, "float32"))
    return block(hidden, caches, slots, batch, req_id), caches[0].storage, caches[1].storage


@pytest.mark.parametrize(
    ("block", "run", "compiler"),
    [
        pytest.param(AttentionBlock, run_attention, "aot_eager", id="attention-aot_eager"),
        pytest.param(AttentionBlock, run_attention, "inductor", id="attention-inductor", marks=needs_compiler),
        pytest.param(SparseBlock, run_sparse, "aot_eager", id="sparse_mla-aot_eager"),
    ],
)
def test_a_block_is_one_graph_for_every_token_count(block: Any, run: Any, compiler: str) -> None:
    torch.manual_seed(0)
    eager = block()
    compiled = torch.compile(eager, fullgraph=True, dynamic=True, backend=compiler)
    for tokens in (9, 3, 12):
        for ours, theirs in zip(run(compiled, tokens), run(eager, tokens), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert counters["stats"]["unique_graphs"] == 1
    # A cache that is written must not be copied on the way.
    assert counters["inductor"]["possibly_missed_reinplacing_bytes"] == 0
    if compiler == "inductor":
        assert counters["inductor"]["possibly_missed_reinplacing_opportunities"] == 0


@pytest.mark.parametrize(
    ("block", "run"), [(AttentionBlock, run_attention), (SparseBlock, run_sparse)], ids=["attention", "sparse_mla"]
)
def test_a_step_without_a_token_compiles(block: Any, run: Any) -> None:
    eager = block()
    compiled = torch.compile(eager, fullgraph=True, dynamic=True, backend="aot_eager")
    for ours, theirs in zip(run(compiled, 0), run(eager, 0), strict=True):
        assert ours.shape == theirs.shape
        assert torch.equal(ours, theirs)


def test_a_call_that_would_need_a_backward_is_refused_when_it_is_traced() -> None:
    torch._dynamo.reset()
    block = AttentionBlock()
    hidden, slots, batch, _ = prefill(3)
    cache = make_cache(attention_layout(KV_HEADS, WIDTH, WIDTH, "float32"))
    with torch.inference_mode(False), torch.enable_grad(), pytest.raises(RuntimeError, match="no backward"):
        torch.compile(block, fullgraph=True, backend="aot_eager")(hidden.clone(), cache, slots, batch)
