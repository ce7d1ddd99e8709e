"""A call of every operator in every overload, at small sizes and without a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hal import ops
from hal.common.backends.kernels import kernels
from hal.common.contract.call_values import CompressedBatch, IndexerChunk, KVCache, PagedBatch, Segment, VarlenBatch
from hal.common.contract.compressor import Compressor
from hal.common.contract.layouts import (
    Layout,
    attention_fp8_layout,
    attention_layout,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    index_layout,
    latent_fp8_layout,
    latent_layout,
    state_layout,
)
from hal.common.contract.masking import Masking
from hal.common.contract.parallel import Parallel
from hal.config.dtypes import item_size

HEADS, WIDTH, PAGE, LORA, ROPE = 4, 8, 4, 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call; `make(tokens)` gives it its tensors."""

    id: str
    make: Callable[[int], Callable[[], Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What an operator was called with."""

    operator: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Recorded] = []

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if operator.namespace == "hal":
            self.calls.append(Recorded(operator=operator, arguments=arguments, keywords=keywords or {}))
        return operator(*arguments, **(keywords or {}))


def record(call: Callable[[], Any]) -> Recorded:
    """The one operator that a function of hal.ops calls, and what it hands over."""
    with _Recorder() as recorder:
        call()
    (recorded,) = recorder.calls
    return recorded


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that depend on the shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float32).to(dtype)


def make_cache(layout: Layout, pages: int = 5, gap: int = 0) -> KVCache:
    """A cache filled with what the layout makes of random values, its pages `gap` rows further apart than they need be."""
    elements = layout.page_bytes(PAGE) // item_size(layout.dtype) + gap * layout.width
    storage = torch.zeros(pages * elements, dtype=getattr(torch, layout.dtype))
    scale = torch.full(layout.scale_shapes[0], 0.01) if layout.scale_shapes else None
    cache = KVCache(storage.as_strided((pages, PAGE, layout.width), (elements, layout.width, 1)), layout, PAGE, PAGE, scale)
    parts = [random(pages * PAGE, *part) for part in layout.parts]
    kernels("cpu").write_cache(cache, torch.arange(pages * PAGE), *parts)
    return cache


def make_batch(tokens: int) -> PagedBatch:
    """Two requests of seven keys, the first with all new tokens but one."""
    first = max(0, tokens - 1)
    return PagedBatch(
        query_start_loc=torch.tensor([0, first, tokens], dtype=torch.int32),
        seq_lens=torch.tensor([7, 7], dtype=torch.int32),
        block_table=torch.tensor([[3, 1, -1], [2, 4, -1]], dtype=torch.int32),
        max_query_len=max(1, first),
        max_seq_len=7,
    )


def out_like(tokens: int, width: int) -> torch.Tensor:
    """An out to write into, in a wider buffer."""
    return spaced(torch.zeros(tokens, HEADS, width + 3)[..., :width])


def spaced(view: torch.Tensor) -> torch.Tensor:
    """The view, dense where it is empty: opcheck cannot copy an empty tensor with gaps."""
    return view if view.numel() else view.new_empty(view.shape)


KV = attention_layout(2, WIDTH, WIDTH + 2, "float32")
LATENT = latent_layout(LORA, ROPE, "float32")
INDEX = index_layout(WIDTH, "float32")
KV_FP8 = attention_fp8_layout(2, WIDTH, WIDTH + 2)
LATENT_FP8 = latent_fp8_layout(LORA, ROPE)
RECORDS = fp8_ds_mla_layout(LORA, ROPE)
INDEX_FP8 = index_fp8_layout(WIDTH)
COMPRESSED = compressed_layout(LORA + ROPE, ROPE)


def _write(layout: Layout, gap: int = 0) -> Callable[[int], Callable[[], Any]]:
    def make(tokens: int) -> Callable[[], Any]:
        slots = torch.tensor([5, -1, 9, 2])[:tokens]
        parts = [random(tokens, *part) for part in layout.parts]
        return lambda: ops.write_cache(make_cache(layout, gap=gap), slots, *parts)

    return make


def _gather(layout: Layout) -> Callable[[int], Callable[[], Any]]:
    def make(tokens: int) -> Callable[[], Any]:
        rows = torch.tensor([3, -1, 0, 7], dtype=torch.int32)[:tokens]
        return lambda: ops.gather_cache(make_cache(layout), rows)

    return make


def _paged(layout: Layout, gap: int = 0, is_given: bool = False, **keywords: Any) -> Callable[[int], Callable[[], Any]]:
    key, value = (layout.parts[0][1], layout.parts[1][1]) if layout.name.startswith("kv") else (layout.width, layout.widths[0])

    def make(tokens: int) -> Callable[[], Any]:
        q = spaced(random(tokens, 2 * HEADS, key)[:, :HEADS])
        out = out_like(tokens, value) if is_given else None
        cache, batch = make_cache(layout, gap=gap), make_batch(tokens)
        return lambda: ops.paged_attention(q, cache, batch, softmax_scale=0.3, out=out, **keywords)

    return make


def _ranges(tokens: int) -> Callable[[], Any]:
    q, cache = random(tokens, HEADS, WIDTH), make_cache(KV)
    starts, stops = torch.zeros(tokens, dtype=torch.int32), torch.full((tokens,), 3, dtype=torch.int32)
    batch = replace(make_batch(tokens), key_starts=starts, key_stops=stops)
    return lambda: ops.paged_attention(q, cache, batch, softmax_scale=0.3)


def _varlen(
    is_given: bool = False, limits: Mapping[str, Any] | None = None, **keywords: Any
) -> Callable[[int], Callable[[], Any]]:
    def make(tokens: int) -> Callable[[], Any]:
        q, k, v = random(tokens, HEADS, WIDTH), random(6, 2, WIDTH), random(6, 2, WIDTH + 2)
        batch = VarlenBatch(
            q_start_loc=torch.tensor([0, tokens], dtype=torch.int32),
            k_start_loc=torch.tensor([0, 6], dtype=torch.int32),
            max_query_len=tokens,
            max_seq_len=6,
            **(limits or {}),
        )
        out = out_like(tokens, WIDTH + 2) if is_given else None
        return lambda: ops.varlen_attention(q, k, v, batch, softmax_scale=0.3, out=out, **keywords)

    return make


def _selected(tokens: int) -> Callable[[], Any]:
    selected = torch.tensor([[0, 2, -1]], dtype=torch.int32).expand(tokens, 3)
    return _varlen(limits={"selected": selected, "first_key": torch.zeros(1, dtype=torch.int32)})(tokens)


def _sparse(*layouts: Layout, is_given: bool = False, **keywords: Any) -> Callable[[int], Callable[[], Any]]:
    def make(tokens: int) -> Callable[[], Any]:
        q = random(tokens, HEADS, LORA + ROPE)
        rows = torch.tensor([[4, 9, -1]], dtype=torch.int32).repeat(tokens, 1)
        valid = torch.full((tokens,), 2, dtype=torch.int32)
        out_width = sum(layouts[0].parts[0])
        out = out_like(tokens, out_width) if is_given else None
        lists = [Segment(make_cache(layout), rows, valid) for layout in layouts]
        return lambda: ops.sparse_mla(q, lists, kv_lora_rank=out_width, softmax_scale=0.3, out=out, **keywords)

    return make


def _scores(layout: Layout) -> Callable[[int], Callable[[], Any]]:
    def make(tokens: int) -> Callable[[], Any]:
        iq, weights = random(tokens, 2, WIDTH), random(tokens, 2)
        return lambda: ops.index_scores(iq, weights, make_cache(layout), make_batch(tokens))

    return make


def _chunk_scores(tokens: int) -> Callable[[], Any]:
    iq, weights, start = random(tokens, 2, WIDTH), random(tokens, 2), min(1, tokens)
    chunk = IndexerChunk(token_start=start, token_stop=tokens, request_start=0, request_stop=2, max_seq_len=8)
    return lambda: ops.index_scores(iq, weights, make_cache(INDEX), make_batch(tokens), chunk)


def _select(tokens: int) -> Callable[[], Any]:
    lengths = torch.tensor([7, 0, 3, 1], dtype=torch.int32)[:tokens]
    return lambda: ops.select_topk(random(tokens, 7), lengths, 3, 4)


def _expand(tokens: int) -> Callable[[], Any]:
    topk = torch.tensor([[1, -1], [0, 2], [-1, -1], [2, 1]], dtype=torch.int32)[:tokens]
    lengths = torch.tensor([7, 6, 0, 5], dtype=torch.int32)[:tokens]
    return lambda: ops.expand_pools(topk, lengths, 2, 6)


def _rows(tokens: int) -> Callable[[], Any]:
    topk = torch.tensor([[0, 6, -1], [9, 2, -1], [-1, -1, -1], [4, 5, 6]], dtype=torch.int32)[:tokens]
    request, batch = torch.tensor([0, 0, 1, 1], dtype=torch.int32)[:tokens], make_batch(tokens)
    return lambda: ops.rows_from_topk(
        topk, request, batch.block_table, batch.seq_lens, block_size=PAGE, parallel=Parallel(tp=2, dcp=2, dcp_rank=1)
    )


def _merge(tokens: int) -> Callable[[], Any]:
    lse = random(HEADS, tokens).t()
    return lambda: ops.merge_states(random(tokens, HEADS, WIDTH), lse, random(tokens, HEADS, WIDTH), lse + 1)


def _compress(tokens: int) -> Callable[[], Any]:
    wide = random(tokens, 2 * WIDTH)
    turn = random(tokens, ROPE // 2)
    compressor = Compressor(
        kv=wide, score=wide + 1, position_bias=random(2, 2 * WIDTH), norm_weight=random(WIDTH), cos=turn.cos(), sin=turn.sin()
    )
    slots = torch.tensor([5, 6, 7, -1])[:tokens]
    closing = torch.where((slots + 1) % 2 == 0, slots // 2, -1)
    batch = CompressedBatch(
        state_slots=slots,
        entry_slots=closing,
        query_start_loc=torch.tensor([0, min(tokens, 3)], dtype=torch.int32),
        req_id=torch.zeros(tokens, dtype=torch.int32),
        positions=torch.tensor([1, 2, 3, 0])[:tokens],
        block_table=torch.tensor([[1]], dtype=torch.int32),
    )
    states, entries = make_cache(state_layout(2 * WIDTH, "float32")), make_cache(latent_layout(WIDTH, 0, "float32"))
    return lambda: ops.compress_states(compressor, states, entries, batch, ratio=2)


def _sink(tokens: int) -> Callable[[], Any]:
    return lambda: ops.apply_sink(random(tokens, HEADS, WIDTH), random(tokens, HEADS), random(HEADS))


SAMPLES = (
    Sample(id="write_cache-kv", make=_write(KV)),
    Sample(id="write_cache-latent-strided_pages", make=_write(LATENT, gap=2)),
    Sample(id="write_cache-kv_fp8", make=_write(KV_FP8)),
    Sample(id="write_cache-compressed", make=_write(COMPRESSED)),
    Sample(id="gather_cache-kv", make=_gather(KV)),
    Sample(id="gather_cache-latent_fp8", make=_gather(LATENT_FP8)),
    Sample(id="gather_cache-indexer_fp8", make=_gather(INDEX_FP8)),
    Sample(id="gather_cache-indexer", make=_gather(INDEX)),
    Sample(id="paged_attention-kv", make=_paged(KV, masking=Masking(window=3, softcap=2.0))),
    Sample(id="paged_attention-kv-strided_pages-lse", make=_paged(KV, gap=3, need_lse=True)),
    Sample(id="paged_attention-latent-out", make=_paged(LATENT, is_given=True, masking=Masking(chunk=4))),
    Sample(id="paged_attention-kv_fp8-lse", make=_paged(KV_FP8, need_lse=True)),
    Sample(id="paged_attention-latent_fp8", make=_paged(LATENT_FP8)),
    Sample(id="paged_attention-kv-out-lse", make=_paged(KV, is_given=True, need_lse=True, masking=Masking(causal=False))),
    Sample(id="paged_attention-key_ranges", make=_ranges),
    Sample(id="varlen_attention", make=_varlen()),
    Sample(id="varlen_attention-selected", make=_selected),
    Sample(id="varlen_attention-lse", make=_varlen(need_lse=True, masking=Masking(window=2, chunk=5))),
    Sample(id="varlen_attention-out", make=_varlen(is_given=True)),
    Sample(id="varlen_attention-out-lse", make=_varlen(is_given=True, need_lse=True)),
    Sample(id="sparse_mla", make=_sparse(LATENT)),
    Sample(id="sparse_mla-two_segments-lse", make=_sparse(LATENT, RECORDS, need_lse=True)),
    Sample(id="sparse_mla-two_segments-out", make=_sparse(LATENT, LATENT_FP8, is_given=True)),
    Sample(id="sparse_mla-out-lse", make=_sparse(COMPRESSED, is_given=True, need_lse=True)),
    Sample(id="index_scores", make=_scores(INDEX)),
    Sample(id="index_scores-fp8_keys", make=_scores(INDEX_FP8)),
    Sample(id="index_scores-chunk", make=_chunk_scores),
    Sample(id="select_topk", make=_select),
    Sample(id="expand_pools-topk", make=_expand),
    Sample(id="rows_from_topk", make=_rows),
    Sample(id="merge_states", make=_merge),
    Sample(id="apply_sink", make=_sink),
    Sample(id="compress_states", make=_compress),
)


def samples(*token_counts: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(id, call) of every sample with so many tokens, at most four."""
    for sample in SAMPLES:
        for tokens in token_counts:
            yield f"{sample.id}-{tokens}_tokens", sample.make(tokens)
