"""Calls whose tensors do not go together, by what is wrong with them, of the backend CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hal import BatchError, HalError, InputError, LayoutError, Parallel, kernels
from hal.common.contract.call_values import IndexerChunk, KVCache, PagedBatch, Segment, VarlenBatch
from hal.common.contract.layouts import attention_layout, fp8_ds_mla_layout, index_layout, latent_layout
from hal.common.contract.masking import Masking
from hal.common.contract.records import allocate_pages

CPU = kernels("cpu")
PAGES, PAGE = 4, 4


def cache_of(layout: Any) -> KVCache:
    return KVCache(allocate_pages(layout, PAGES, PAGE, "cpu"), layout, PAGE, PAGE)


HEADS, LATENT = cache_of(attention_layout(2, 8, 8, "float32")), cache_of(latent_layout(8, 4, "float32"))
RECORDS, KEYS = cache_of(fp8_ds_mla_layout(128, 8)), cache_of(index_layout(8, "float32"))


def floats(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*shape, **options)


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


BATCH = PagedBatch(ints(0, 1, 3), ints(3, 5), ints([0, 1], [2, 3]), 2, 5)


def attend(q: Any = None, **options: Any) -> Any:
    batch = replace(BATCH, **options.pop("batch", {}))
    return CPU.paged_attention(floats(3, 4, 8) if q is None else q, HEADS, batch, softmax_scale=1.0, **options)


def varlen(q: Any = None, k: Any = None, q_starts: Any = None, k_starts: Any = None, **options: Any) -> Any:
    k = floats(4, 2, 8) if k is None else k
    q_starts, k_starts = ints(0, 3) if q_starts is None else q_starts, ints(0, 4) if k_starts is None else k_starts
    q = floats(3, 2, 8) if q is None else q
    lists = {name: options.pop(name) for name in ("selected", "first_key") if name in options}
    batch = VarlenBatch(q_start_loc=q_starts, k_start_loc=k_starts, max_query_len=3, max_seq_len=4, **lists)
    return CPU.varlen_attention(q, k, k, batch, softmax_scale=1.0, **options)


def score(iq: Any = None, weights: Any = None, cache: KVCache = KEYS, **chunk: int) -> Any:
    span = {"token_start": 0, "token_stop": 3, "request_start": 0, "request_stop": 2, "max_seq_len": 5}
    iq, weights = floats(3, 2, 8) if iq is None else iq, floats(3, 2) if weights is None else weights
    return CPU.index_scores(iq, weights, cache, BATCH, IndexerChunk(**(span | chunk)))


def choose(topk: Any = None, req_id: Any = None, lengths: Any = None, block_size: int = PAGE, **options: Any) -> Any:
    topk, lengths = ints([0, 1]) if topk is None else topk, ints(4) if lengths is None else lengths
    req_id = ints(0) if req_id is None else req_id
    return CPU.rows_from_topk(topk, req_id, ints([0, 1]), lengths, block_size=block_size, parallel=Parallel(), **options)


def sparse(q: Any = None, segments: Any = None, **fields: Any) -> Any:
    segment = Segment(LATENT, ints([0, 1]), ints(2))._replace(**fields)
    q = floats(1, 2, 12) if q is None else q
    return CPU.sparse_mla(q, (segment,) if segments is None else segments, kv_lora_rank=8, softmax_scale=1.0)


def merge(**fields: Any) -> Any:
    good = {"out_a": floats(2, 2, 4), "lse_a": floats(2, 2), "out_b": floats(2, 2, 4), "lse_b": floats(2, 2)}
    return CPU.merge_states(**(good | fields))


def write(cache: KVCache, slots: torch.Tensor, *parts: torch.Tensor) -> None:
    CPU.write_cache(cache, slots, *parts)


TWO, ONE = floats(2, 2, 8), torch.tensor([0, 1])

CASES: dict[str, tuple[Callable[[], Any], type[HalError], str]] = {
    "write_slots_of_32_bits": (lambda: write(HEADS, ints(0, 1), TWO, TWO), BatchError, "slots is int32.*int64"),
    "write_records_to_slots_of_32_bits": (
        lambda: write(RECORDS, ints(0, 1), floats(2, 128), floats(2, 8)),
        BatchError,
        "slots is int32",
    ),
    "write_slots_in_a_column": (lambda: write(HEADS, ONE[:, None], TWO, TWO), BatchError, r"slots is int64 \[2, 1\]"),
    "write_whole_numbers": (lambda: write(HEADS, ONE, TWO, TWO.int()), LayoutError, "part 1 is int32"),
    "write_from_elsewhere": (lambda: write(HEADS, ONE, TWO, TWO.to("meta")), LayoutError, "part 1 is .*on meta"),
    "gather_fractions": (lambda: CPU.gather_cache(HEADS, floats(2)), BatchError, "rows is float32"),
    "gather_a_table": (lambda: CPU.gather_cache(RECORDS, ints([0, 1])), BatchError, r"rows is int32 \[1, 2\]"),
    "paged_q_without_heads": (lambda: attend(floats(3, 8)), LayoutError, r"q is float32 \[3, 8\]"),
    "paged_q_of_whole_numbers": (lambda: attend(floats(3, 4, 8).int()), LayoutError, "q is int32"),
    "paged_q_elsewhere": (lambda: attend(floats(3, 4, 8, device="meta")), LayoutError, "q is .*on meta"),
    "paged_out_elsewhere": (lambda: attend(out=floats(3, 4, 8, device="meta")), LayoutError, "out is .*on meta"),
    "paged_too_few_starts": (lambda: attend(batch={"query_start_loc": ints(0, 3)}), BatchError, "2 entries; 2 requests need 3"),
    "paged_too_many_starts": (lambda: attend(batch={"query_start_loc": ints(0, 1, 2, 3)}), BatchError, "4 entries; 2 requests"),
    "paged_table_of_one_request": (lambda: attend(batch={"block_table": ints([0, 1])}), BatchError, "seq_lens 2, block_table 1"),
    "paged_flat_table": (lambda: attend(batch={"block_table": ints(0, 1)}), BatchError, r"block_table is int32 \[2\]"),
    "paged_lengths_of_fractions": (lambda: attend(batch={"seq_lens": floats(2)}), BatchError, "seq_lens is float32"),
    "paged_window_of_nothing": (lambda: attend(masking=Masking(window=0)), InputError, "window is 0"),
    "paged_chunk_of_nothing": (lambda: attend(masking=Masking(chunk=0)), InputError, "chunk is 0"),
    "paged_softcap_of_nothing": (lambda: attend(masking=Masking(softcap=0.0)), InputError, "softcap is 0.0"),
    "varlen_keys_without_heads": (lambda: varlen(k=floats(4, 8)), LayoutError, r"k is float32 \[4, 8\]"),
    "varlen_no_kv_heads": (lambda: varlen(k=floats(4, 0, 8)), LayoutError, r"\[4, 0, 8\]"),
    "varlen_other_requests": (lambda: varlen(q_starts=ints(0, 1, 3)), BatchError, "k_start_loc has 2 entries; 2 requests"),
    "varlen_choice_of_other_tokens": (lambda: varlen(selected=ints([0, 1])), BatchError, "q 3, selected 1"),
    "varlen_first_keys_of_others": (lambda: varlen(first_key=ints(0, 1)), BatchError, "q_start_loc 1, first_key 2"),
    "scores_of_other_heads": (lambda: score(weights=floats(3, 3)), LayoutError, r"weights \[3, 3\]"),
    "scores_of_other_widths": (lambda: score(floats(3, 2, 9)), LayoutError, r"\[3, 2, 9\].*\[\[8\]\]"),
    "scores_of_a_cache_of_heads": (lambda: score(cache=HEADS), LayoutError, "'kv'"),
    "scores_of_too_many_tokens": (lambda: score(token_stop=9), BatchError, "token 9.*3 tokens"),
    "scores_of_too_many_requests": (lambda: score(request_stop=7), BatchError, "request 7.*2 requests"),
    "topk_of_other_tokens": (lambda: CPU.select_topk(floats(3, 5), ints(5, 5), 2, 2), BatchError, "scores 3, lengths 2"),
    "topk_of_fewer_than_none": (lambda: CPU.select_topk(floats(1, 5), ints(5), -1, 2), LayoutError, "-1 keys"),
    "topk_of_whole_numbers": (lambda: CPU.select_topk(ints([1, 2]), ints(2), 1, 1), LayoutError, "scores is int32"),
    "topk_of_one_row": (lambda: CPU.select_topk(floats(5), ints(5), 1, 1), LayoutError, r"scores is float32 \[5\]"),
    "pools_of_nothing": (lambda: CPU.expand_pools(ints([0]), ints(5), 0, 8), LayoutError, "pools of 0 tokens"),
    "pools_of_other_tokens": (lambda: CPU.expand_pools(ints([0]), ints(5, 6), 2, 8), BatchError, "topk 1, lengths 2"),
    "rows_of_fractions": (lambda: choose(floats(1, 2)), BatchError, "topk is float32"),
    "rows_of_other_tokens": (lambda: choose(req_id=ints(0, 0)), BatchError, "topk 1, req_id 2"),
    "rows_of_other_requests": (lambda: choose(lengths=ints(4, 4)), BatchError, "block_table 1, seq_lens 2"),
    "rows_of_empty_pages": (lambda: choose(block_size=0), BatchError, "block_size 0"),
    "rows_of_short_pages": (lambda: choose(rows_per_page=2), BatchError, "block_size 4.*2 rows"),
    "sparse_q_without_heads": (lambda: sparse(floats(1, 12)), LayoutError, r"q is float32 \[1, 12\]"),
    "sparse_fractions": (lambda: sparse(rows=floats(1, 2)), BatchError, "rows of segment 0 is float32"),
    "sparse_flat_rows": (lambda: sparse(rows=ints(0)), BatchError, r"rows of segment 0 is int32 \[1\]"),
    "sparse_counts_of_fractions": (lambda: sparse(valid=floats(1)), BatchError, "valid of segment 0 is float32"),
    "sparse_lone_segment": (lambda: sparse(segments=Segment(LATENT, ints([0]), ints(1))), LayoutError, "segment 0 is a KVCache"),
    "merge_other_heads": (lambda: merge(lse_b=floats(2, 3)), LayoutError, r"lse \[2, 3\]"),
    "merge_other_tokens": (lambda: merge(out_b=floats(3, 2, 4), lse_b=floats(3, 2)), LayoutError, r"\[2, 2, 4\].*\[3, 2, 4\]"),
    "merge_other_widths": (lambda: merge(out_b=floats(2, 2, 1)), LayoutError, r"\[2, 2, 4\].*\[2, 2, 1\]"),
    "sink_of_other_heads": (lambda: CPU.apply_sink(floats(2, 2, 4), floats(2, 2), floats(1)), LayoutError, "sink has 1 entries"),
    "sink_per_token": (lambda: CPU.apply_sink(floats(2, 2, 4), floats(2, 2), floats(2, 2)), LayoutError, "sink is float32"),
    "sink_without_lse": (lambda: CPU.apply_sink(floats(2, 2, 4), None, floats(2)), LayoutError, "lse is a NoneType"),
}
