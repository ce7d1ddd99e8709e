"""Turning the contract's tensors into what vendors take, and what they return into the contract's results."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from hal.common.contract.call_values import KVCache, PagedBatch, Segment, refuse_key_ranges
from hal.common.contract.dense import refuse_shared
from hal.common.contract.errors import BatchError, LayoutError

Result = tuple[torch.Tensor, torch.Tensor | None]


def readable_table(batch: PagedBatch, num_pages: int) -> torch.Tensor:
    """The block table with page 0 in place of ids that are none of num_pages; the same for every layer of a step.

    Libraries look such a page up all the same: behind a window, where a tile begins before it, and for requests whose length
    is 0. Nothing outside the cache is read then, and no query sees what page 0 holds.
    """
    key = ("readable_table", num_pages)
    table = None if batch.memo is None else batch.memo.get(key)
    if not isinstance(table, torch.Tensor):
        given = batch.block_table
        # An operator's result lies as its operands do.
        table = torch.where((given >= 0) & (given < num_pages), given, 0).contiguous()
        if batch.memo is not None:
            batch.memo[key] = table
    return table


def aligned_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a dense copy where its last dimension is not dense or an index of another is no multiple of 16 bytes in.

    Libraries read 16 bytes at a time from where a row begins.
    """
    return tensor if is_aligned(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether the last dimension is dense and every row begins at a multiple of 16 bytes, or no copy would make it so."""
    if tensor.data_ptr() % 16:
        return False
    if tensor.is_contiguous():
        return True
    *strides, last = tensor.stride()
    return last == 1 and all(stride * tensor.element_size() % 16 == 0 for stride in strides)


def writable(out: torch.Tensor | None) -> torch.Tensor | None:
    """out where a library can write into it, None where its result must be copied there."""
    return out if out is not None and is_aligned(out) else None


def check_cache(cache: KVCache) -> None:
    """Raise LayoutError for a cache whose rows do not begin at multiples of 16 bytes; it is not to be copied."""
    storage = cache.storage
    if not is_aligned(storage):
        raise LayoutError(
            f"cache storage begins {storage.data_ptr() % 16} bytes past a multiple of 16, with strides {storage.stride()} of "
            f"{storage.element_size()} bytes; these kernels read rows that begin at multiples of 16 bytes"
        )


def split_pages(cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a `kv` cache as K [pages, block_size, kv_heads, head_dim] and V."""
    keys, values = cache.storage[:, : cache.block_size].split(cache.layout.widths, dim=-1)
    return keys.unflatten(-1, cache.layout.parts[0]), values.unflatten(-1, cache.layout.parts[1])


def split_latent(cache: KVCache, rows: torch.Tensor, rope_width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a latent cache's rows [..., lora + rope] as rotary part [..., rope_width] and latent part [..., lora].

    Where the cache has no rotary part, the first lanes of the latent one stand in: the query's zeros make them count nothing.
    """
    lora, rope = cache.layout.widths
    start = lora if rope else 0
    return rows[..., start : start + rope_width], rows[..., :lora]


def split_query(q: torch.Tensor, kv_lora_rank: int, rope_width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """q [tokens, heads, lora + rope] as rotary part [tokens, heads, rope_width], zeros where there is none, and latent part."""
    latent, rope = q[..., :kv_lora_rank], q[..., kv_lora_rank:]
    return rope if rope.shape[-1] else q.new_zeros(*q.shape[:2], rope_width), latent


def pad_to(tensor: torch.Tensor, dim: int, size: int, value: float = 0) -> torch.Tensor:
    """The tensor itself, or a copy filled up to a size along one dimension."""
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_full(shape, value)], dim=dim)


def round_up(value: int, multiple: int) -> int:
    """The next multiple of a number, itself included."""
    return -(-value // multiple) * multiple


def rows_to_csr(rows: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compacted rows [tokens, width] as CSR: indptr int32 [tokens + 1] and indices int32 [tokens * width + 1].

    The indices past indptr's last are zeros; no value leaves the device, so a graph can hold it.
    """
    tokens, width = rows.shape
    indptr = valid.new_zeros(tokens + 1)
    indptr[1:] = valid.cumsum(0)
    column = torch.arange(width, device=rows.device)
    place = indptr[:-1, None].long() + column[None, :]
    # What is not valid lands in one spare element at the end, which is then zeroed.
    place = torch.where(column[None, :] < valid[:, None], place, tokens * width)
    indices = rows.new_zeros(tokens * width + 1)
    indices.scatter_(0, place.reshape(-1), rows.reshape(-1))
    indices[-1] = 0
    return indptr, indices


def token_requests(query_start_loc: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """int64 [tokens]: the request of each query; that of a padded one is the number of requests."""
    tokens = torch.arange(num_tokens, device=query_start_loc.device, dtype=query_start_loc.dtype)
    return torch.searchsorted(query_start_loc[1:].contiguous(), tokens, right=True)


def visible_lengths(query_start_loc: torch.Tensor, key_counts: torch.Tensor, num_tokens: int, *, causal: bool) -> torch.Tensor:
    """int32 [tokens]: how many of its request's keys each query may see; 0 for a padded one, never negative."""
    request = token_requests(query_start_loc, num_tokens)
    padded = request == key_counts.shape[0]
    request = request.clamp(max=key_counts.shape[0] - 1)
    lengths = key_counts[request]
    if causal:
        tokens = torch.arange(num_tokens, device=query_start_loc.device, dtype=query_start_loc.dtype)
        lengths = lengths - (query_start_loc[1:][request] - tokens) + 1
    return lengths.masked_fill(padded, 0).clamp(min=0).to(torch.int32)


def empty_results(q: torch.Tensor, width: int, need_lse: bool, out: torch.Tensor | None) -> Result:
    """What queries without any key give: out 0 and lse -inf."""
    out = q.new_empty(*q.shape[:2], width) if out is None else out
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device) if need_lse else None
    return out.zero_(), lse


def settle_results(
    result: torch.Tensor, lse: torch.Tensor | None, lengths: torch.Tensor, heads: int, width: int, out: torch.Tensor | None
) -> Result:
    """A vendor's out [tokens, >= heads, >= width] and lse [tokens, >= heads] as the contract has them.

    lengths: how many keys each query saw. One that saw none gives 0 and -inf, whatever the vendor left there: +inf, a huge
    negative number, or memory that nobody wrote.
    """
    nothing = lengths == 0
    settled = result[:, :heads, :width].masked_fill_(nothing[:, None, None], 0)
    if lse is not None:
        lse = lse[:, :heads].masked_fill_(nothing[:, None], -torch.inf)
    if out is None or result is out:
        return settled if out is None else out, lse
    return out.copy_(settled), lse


def check_paged(q: torch.Tensor, cache: KVCache, batch: PagedBatch, out: torch.Tensor | None) -> int:
    """The width of the results; LayoutError or BatchError where query, cache and batch do not go together."""
    layout = cache.layout
    if layout.name not in ("kv", "latent"):
        raise LayoutError(f"paged attention reads layouts 'kv' and 'latent', not {layout.name!r}")
    heads, width = layout.parts[0] if layout.name == "kv" else (1, layout.width)
    value_width = layout.parts[1][1] if layout.name == "kv" else layout.widths[0]
    if q.dim() != 3 or q.shape[2] != width or q.shape[1] % heads:
        raise LayoutError(f"q has shape {list(q.shape)}; the cache needs [tokens, a multiple of {heads} heads, {width}]")
    if q.dtype != cache.storage.dtype:
        raise LayoutError(f"q is {q.dtype} and the cache {cache.storage.dtype}; they must be the same")
    requests = batch.seq_lens.shape[0]
    if batch.query_start_loc.shape[0] != requests + 1 or batch.block_table.shape[0] != requests:
        raise BatchError(
            f"{requests} seq_lens, {batch.query_start_loc.shape[0]} query_start_loc and {batch.block_table.shape[0]} rows of "
            "the block table; expected as many requests in each, and one start more"
        )
    refuse_key_ranges(batch, "paged_attention")
    _check_out(q, value_width, out)
    return value_width


def check_sparse(
    q: torch.Tensor,
    segments: Sequence[Segment],
    kv_lora_rank: int,
    out: torch.Tensor | None,
    layouts: Collection[str] = ("latent",),
) -> None:
    """Nothing; LayoutError or BatchError where query, caches and rows do not go together."""
    if not segments:
        raise BatchError("sparse attention needs at least one list of rows")
    for cache, rows, valid in segments:
        width = sum(cache.layout.widths)
        if cache.layout.name not in layouts or cache.layout.widths[0] != kv_lora_rank:
            raise LayoutError(f"a cache of layout {cache.layout.name!r} and parts {cache.layout.widths}; not lora {kv_lora_rank}")
        dtype = torch.bfloat16 if cache.layout.blocks is not None else cache.storage.dtype
        if q.dim() != 3 or q.shape[2] != width or q.dtype != dtype:
            raise LayoutError(f"q is {q.dtype} {list(q.shape)}; the cache needs {dtype} [tokens, heads, {width}]")
        if rows.shape[0] != q.shape[0] or valid.shape[0] != q.shape[0]:
            raise BatchError(f"{rows.shape[0]} lists of rows and {valid.shape[0]} counts for {q.shape[0]} queries")
    _check_out(q, kv_lora_rank, out)


def check_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None) -> None:
    """Nothing; LayoutError where queries, keys and values do not go together."""
    if k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2] or q.shape[1] % k.shape[1]:
        raise LayoutError(
            f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}: keys and values need as many tokens and heads, "
            "queries the keys' width and a multiple of their heads"
        )
    _check_out(q, v.shape[2], out, k=k, v=v)


def _check_out(q: torch.Tensor, width: int, out: torch.Tensor | None, **inputs: torch.Tensor) -> None:
    shape = (*q.shape[:2], width)
    if out is not None and (tuple(out.shape) != shape or out.dtype != q.dtype):
        raise LayoutError(f"out is {out.dtype} {list(out.shape)}; this call writes {q.dtype} {list(shape)}")
    refuse_shared(out, q=q, **inputs)
