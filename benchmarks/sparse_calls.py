"""The CPU's sparse calls at DeepSeek-V3.2's widths, each as a share of what this machine can do.

    python benchmarks/sparse_calls.py [--context 16384]

sparse_mla and index_scores are set against the machine's matrix-product rate, select_topk against its read rate (one pass
over the scores is the least that any choice needs). 128 heads, lora 512, rope 64, 64 index heads of 128, top-k 2048.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from machine import Rates, best_time, measure_rates

import hal
from hal import KVCache, PagedBatch, Segment
from hal.layouts import index_layout, latent_layout

HEADS, LORA, ROPE, TOPK, INDEX_HEADS, INDEX_DIM, PAGE = 128, 512, 64, 2048, 64, 128, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One measured call: what it does, and the operations or the bytes that it cannot do without."""

    name: str
    call: Callable[[], object]
    gflop: float = 0.0
    gbytes: float = 0.0

    def describe(self, rates: Rates) -> str:
        """The call's best time and its share of the machine's rate."""
        seconds = best_time(self.call, rounds=7)
        if self.gflop:
            share, amount = self.gflop / seconds / rates.sgemm_gflops, f"{self.gflop:.2f} GF, {{:.0%}} of sgemm"
        else:
            share, amount = self.gbytes / seconds / rates.read_gbytes, f"{self.gbytes:.3f} GB, {{:.0%}} of reads"
        return f"{self.name}: {seconds * 1e3:.2f} ms, {amount.format(share)}"


def list_work(tokens: int, context: int) -> list[Work]:
    """The three calls for the last tokens of one request of this context."""
    kernels = hal.kernels("cpu")
    torch.manual_seed(0)
    pages = -(-context // PAGE)
    latent = KVCache(torch.randn(pages, PAGE, LORA + ROPE), latent_layout(LORA, ROPE, "float32"), PAGE, PAGE)
    index = KVCache(torch.randn(pages, PAGE, INDEX_DIM), index_layout(INDEX_DIM, "float32"), PAGE, PAGE)
    table = torch.randperm(pages, dtype=torch.int32)[None, :]
    lens = torch.tensor([context], dtype=torch.int32)
    batch = PagedBatch(torch.tensor([0, tokens], dtype=torch.int32), lens, table, tokens, context)
    q = torch.randn(tokens, HEADS, LORA + ROPE)
    rows = torch.stack([torch.randperm(context)[:TOPK] for _ in range(tokens)]).int()
    segment = Segment(latent, rows, torch.full((tokens,), TOPK, dtype=torch.int32))
    iq, weights = torch.randn(tokens, INDEX_HEADS, INDEX_DIM), torch.randn(tokens, INDEX_HEADS)
    scores = kernels.index_scores(iq, weights, index, batch)
    lengths = context - tokens + 1 + torch.arange(tokens, dtype=torch.int32)
    return [
        Work(
            name=f"sparse_mla, {tokens} tokens over {TOPK} of {context} keys",
            call=lambda: kernels.sparse_mla(q, [segment], kv_lora_rank=LORA, softmax_scale=0.1),
            gflop=2e-9 * tokens * HEADS * TOPK * (LORA + ROPE + LORA),
        ),
        Work(
            name=f"index_scores, {tokens} tokens over {context} keys",
            call=lambda: kernels.index_scores(iq, weights, index, batch),
            gflop=2e-9 * tokens * context * INDEX_HEADS * (INDEX_DIM + 1),
        ),
        Work(
            name=f"select_topk, {TOPK} of {context} for {tokens} tokens",
            call=lambda: kernels.select_topk(scores, lengths, TOPK, TOPK),
            gbytes=1e-9 * scores.nbytes,
        ),
    ]


def main() -> None:
    """Print every call for one decoded token, a batch of decodes and a piece of a prefill."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--context", type=int, default=16384)
    context = parser.parse_args().context
    rates = measure_rates()
    print(rates)
    for tokens in (1, 8, 64):
        for work in list_work(tokens, context):
            print(work.describe(rates))


if __name__ == "__main__":
    main()
