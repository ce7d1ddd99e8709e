"""Attention over blocks of keys that a small scorer picks: MiniMax-M3's and Qwen4's form."""

from __future__ import annotations

from .errors import ConfigError
from .fields import Fields
from .indexer import check_half
from .kinds import BLOCK_SPARSE, SPARSE
from .layer_shape import BlockSparseShape
from .source import MISSING
from .values import as_count

_NESTED_NAMES = {
    "index_topk_blocks": "sparse_topk_blocks",
    "index_block_size": "sparse_block_size",
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
}


def read_block_sparse(fields: Fields, kind: str) -> BlockSparseShape | None:
    """How a layer of this type picks its blocks, None where it does not. ConfigError: a picking layer without sizes."""
    if kind == BLOCK_SPARSE:
        sizes = {field: _size(fields, field) for field in _NESTED_NAMES}
        return BlockSparseShape(
            topk_blocks=sizes["index_topk_blocks"],
            block_size=sizes["index_block_size"],
            num_heads=sizes["index_n_heads"],
            head_dim=sizes["index_head_dim"],
        )
    budget = fields.count("indexer_budget")
    if budget is None:
        check_half(fields, "indexer_budget", ("indexer_n_heads", "indexer_head_dim", "indexer_compress_ratio"))
        return None
    if fields.count("index_topk") is not None:
        raise ConfigError(f"index_topk and indexer_budget {budget} are both stated; expected one of the two kinds of indexer")
    return _compressed_keys(fields, budget)


def is_picking(kind: str, types: tuple[str, ...]) -> bool:
    """Whether a layer of this type picks: those named sparse where any is, else every attending layer."""
    return kind in (BLOCK_SPARSE, SPARSE) or SPARSE not in types


def _compressed_keys(fields: Fields, budget: int) -> BlockSparseShape:
    """Qwen4: one index key per `indexer_compress_ratio` tokens, and a budget in tokens."""
    ratio = fields.require_count("indexer_compress_ratio")
    key_heads = fields.count("indexer_kv_heads") or 1
    if key_heads != 1:
        raise ConfigError(f"indexer_kv_heads is {key_heads}, expected 1: one index key for all heads")
    if budget % ratio:
        raise ConfigError(f"indexer_budget is {budget}, expected a multiple of indexer_compress_ratio {ratio}")
    return BlockSparseShape(
        topk_blocks=budget // ratio,
        block_size=ratio,
        num_heads=fields.require_count("indexer_n_heads"),
        head_dim=fields.require_count("indexer_head_dim"),
        tokens_per_key=ratio,
    )


def _size(fields: Fields, field: str) -> int:
    group = fields.nested("sparse_attention_config")
    name = _NESTED_NAMES[field]
    value = group.read(name) if group else MISSING
    if group is not None and value is not MISSING:
        found = as_count(value, group.describe(name))
        if found is not None:
            return found
    return fields.require_count(field)
