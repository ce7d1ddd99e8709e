"""Every buffer that a plan needs beside the caches, by name and size, before any of them exists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm
from typing import TYPE_CHECKING

from hal.common.contract.buffer import Buffer
from hal.common.contract.choice_kind import ChoiceKind, choice_kind, list_kinds
from hal.common.contract.errors import InputError
from hal.common.contract.limits import MAX_CONTEXT_ROWS, Limits
from hal.common.contract.parallel import Parallel
from hal.config import ModelShape
from hal.config.dtypes import item_size

if TYPE_CHECKING:
    from hal.common.contract.cache_groups import CacheGroup

# Keys and values that are expanded from latents at once; more heads than fit are taken one run after the other.
MAX_EXPANDED_BYTES = 256 * 2**20


def context_rows(limits: Limits, block_size: int, parallel: Parallel, topk: int | None = None) -> int:
    """Context tokens gathered at once, a multiple of the page size.

    Wide enough for several requests and no wider than 65536 rows; with an indexer, chunks need not hold more than every
    request's choice, since longer contexts are read sparsely.
    """
    alignment = block_size if parallel.dcp == 1 else lcm(block_size, parallel.dcp * parallel.interleave)
    rows = min(max(8 * limits.max_model_len, 4 * limits.max_num_seqs * block_size), MAX_CONTEXT_ROWS)
    if topk is not None:
        rows = max(min(rows, limits.max_num_seqs * topk), block_size)
    rows = min(rows, -(-limits.max_model_len // block_size) * block_size * limits.max_num_seqs)
    return -(-max(rows, alignment) // alignment) * alignment


def plan_buffers(
    shape: ModelShape,
    limits: Limits,
    parallel: Parallel,
    dtype: str,
    block_size: int,
    context_dtype: str | None = None,
) -> tuple[Buffer, ...]:
    """The buffers of a step beside the builder's: the indexer's choice and scores, gathered context where one rank has all of it.

    context_dtype: what cached latents are gathered as, where it is not the dtype that they are computed in.
    """
    buffers = _choice_buffers(shape, limits)
    buffers += _row_buffers(shape, limits)
    latent = [layer for layer in shape.layers if layer.mla is not None]
    if latent and parallel.dcp == 1:
        # Dense layers gather whole contexts; with indexers alone, a context of every request's choice is enough.
        topks = [layer.indexer.topk if layer.indexer is not None else None for layer in latent]
        rows = max(context_rows(limits, block_size, parallel, topk) for topk in topks)
        widest = max(layer.mla.latent_dim for layer in latent if layer.mla is not None)
        per_head = rows * max(layer.head_dim + layer.v_head_dim for layer in latent)
        most = max(layer.num_heads for layer in latent) // parallel.tp
        heads = max(1, min(most, MAX_EXPANDED_BYTES // (per_head * item_size(dtype))))
        buffers.append(Buffer(name="context", shape=(rows, widest), dtype=context_dtype or dtype, transient=True))
        buffers.append(Buffer(name="expanded context", shape=(heads * per_head,), dtype=dtype, transient=True))
    return tuple(buffers)


def _choice_buffers(shape: ModelShape, limits: Limits) -> list[Buffer]:
    """What indexers write; ValueError where the cap on scores does not hold one token's."""
    choosing = [layer for layer in shape.layers if layer.indexer is not None]
    if not choosing:
        return []
    indexers = [layer.indexer for layer in choosing if layer.indexer is not None]
    tokens = limits.max_num_batched_tokens
    keys = limits.max_model_len // min(layer.tokens_per_index_key for layer in choosing)
    if limits.max_logits_bytes < keys * 4:
        raise InputError(
            f"max_logits_bytes is {limits.max_logits_bytes}; the index scores of one token over max_model_len "
            f"{limits.max_model_len} take {keys * 4}; raise it, or lower max_model_len"
        )
    kinds = list_kinds(choosing)
    names = ["top-k"] if len(kinds) == 1 else [_name_choice(kind, kinds) for kind in kinds]
    buffers = [Buffer(name=name, shape=(tokens, kind.width), dtype="int32") for name, kind in zip(names, kinds, strict=True)]
    pools = max((indexer.topk // indexer.pool for indexer in indexers if indexer.pool > 1), default=0)
    if pools:
        buffers.append(Buffer(name="chosen pools", shape=(tokens, pools), dtype="int32", transient=True))
    scores = min(limits.max_logits_bytes // 4, tokens * max(1, keys))
    return [*buffers, Buffer(name="index scores", shape=(scores,), dtype="float32", transient=True)]


def _name_choice(kind: ChoiceKind, kinds: Sequence[ChoiceKind]) -> str:
    name = f"top-k of {kind.width}"
    if sum(each.width == kind.width for each in kinds) > 1:
        name += f" ({kind.topk} of {kind.tokens_per_id} tokens each)"
    return name


def chosen_rows(shape: ModelShape, limits: Limits, groups: Iterable[CacheGroup]) -> tuple[Buffer, ...]:
    """Where the keys that indexers chose lie in each cache group that is read so, and how many of them; until the next choice."""
    group_of: dict[tuple[str, int | None], int] = {
        (each.part, owner): each.group_id for each in groups for owner in each.layer_ids
    }
    read = {
        (kind, group_of.get(("kv", layer.kv_source) if layer.mla is not None else ("entries", layer.entry_source)))
        for layer in shape.layers
        if (kind := choice_kind(layer)) is not None
    }
    shape_of_all = (limits.max_num_batched_tokens, sum(kind.width + 1 for kind, _ in read))
    return (Buffer(name="chosen rows", shape=shape_of_all, dtype="int32", transient=True),) if read else ()


def _row_buffers(shape: ModelShape, limits: Limits) -> list[Buffer]:
    """The rows that a step's compressed layers attend to: each window, and all entries where no indexer picks them."""
    layers = [layer for layer in shape.layers if layer.kind == "compressed"]
    longest = limits.max_model_len
    windows = {min(layer.window or longest, longest) for layer in layers}
    everything = {longest // layer.compress_ratio for layer in layers if layer.compress_ratio and layer.indexer is None}
    width = sum(windows) + sum(everything)
    rows = Buffer(name="compressed rows", shape=(limits.max_num_batched_tokens, width), dtype="int32", transient=True)
    return [rows] if layers else []
