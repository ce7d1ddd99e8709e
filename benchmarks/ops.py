"""What a call costs through its operator, against the same call made directly.

    python benchmarks/ops.py

Small sizes, so that the host's work shows. Both sides run in turn, round by round; a figure is the best and the median round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import hal
from hal import ops
from hal.layouts import attention_layout, index_layout, latent_layout

PAGE, CALLS, ROUNDS = 16, 10, 500
"""Rounds are short, so that some of them meet no other process."""

Call = Callable[[Any], object]


def make_cache(layout: Any) -> hal.KVCache:
    """A filled cache of 64 pages."""
    return hal.KVCache(torch.randn(64, PAGE, layout.width), layout, PAGE, PAGE)


def make_calls() -> dict[str, Call]:
    """Each call at one decode token; it takes hal.ops or a backend."""
    kv, latent = make_cache(attention_layout(2, 64, 64, "float32")), make_cache(latent_layout(64, 16, "float32"))
    keys = make_cache(index_layout(64, "float32"))
    table, one = torch.tensor([[1, 2, 3, 4]], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    batch = hal.PagedBatch(torch.tensor([0, 1], dtype=torch.int32), 40 * one, table, 1, 40, 1)
    slots, k, v = torch.tensor([70]), torch.randn(1, 2, 64), torch.randn(1, 2, 64)
    q, wide, out = torch.randn(1, 8, 64), torch.randn(1, 8, 80), torch.empty(1, 8, 64)
    lse, rows = torch.randn(1, 8), torch.arange(16, 32, dtype=torch.int32)[None]
    segments = [hal.Segment(latent, rows, 16 * one)]
    starts = torch.tensor([0, 1], dtype=torch.int32)
    lists = hal.VarlenBatch(q_start_loc=starts, k_start_loc=starts, max_query_len=1, max_seq_len=1)
    scores, ids = torch.randn(1, 40), torch.arange(16, dtype=torch.int32)[None]
    return {
        "write_cache": lambda c: c.write_cache(kv, slots, k, v),
        "gather_cache": lambda c: c.gather_cache(kv, rows[0]),
        "paged_attention": lambda c: c.paged_attention(q, kv, batch, softmax_scale=0.1),
        "paged_attention, out= and lse": lambda c: c.paged_attention(q, kv, batch, softmax_scale=0.1, need_lse=True, out=out),
        "varlen_attention": lambda c: c.varlen_attention(q, k, v, lists, softmax_scale=0.1),
        "index_scores": lambda c: c.index_scores(torch.ones(1, 4, 64), torch.ones(1, 4), keys, batch),
        "select_topk": lambda c: c.select_topk(scores, 40 * one, 16, 16),
        "rows_from_topk": lambda c: c.rows_from_topk(ids, 0 * one, table, 40 * one, block_size=PAGE, parallel=hal.Parallel()),
        "sparse_mla": lambda c: c.sparse_mla(wide, segments, kv_lora_rank=64, softmax_scale=0.1),
        "merge_states": lambda c: c.merge_states(q, lse, q, lse),
        "apply_sink": lambda c: c.apply_sink(q, lse, lse[0]),
    }


def time_round(call: Call, target: Any) -> float:
    """Microseconds of one call, over a round of them."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call(target)
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    """Print a line per call."""
    torch.set_num_threads(1)
    direct = hal.kernels("cpu")
    with torch.inference_mode():
        for name, call in make_calls().items():
            pairs = [(time_round(call, direct), time_round(call, ops)) for _ in range(ROUNDS)]
            best = [min(column) for column in zip(*pairs, strict=True)]
            middle = [statistics.median(column) for column in zip(*pairs, strict=True)]
            print(
                f"{name}: direct {best[0]:.1f} us, operator {best[1]:.1f}, overhead {best[1] - best[0]:.1f} "
                f"(medians {middle[0]:.1f}, {middle[1]:.1f}, {middle[1] - middle[0]:.1f})"
            )


if __name__ == "__main__":
    main()
