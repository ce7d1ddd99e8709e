"""One layer of a model: what it computes and what a token of it takes, frozen and independent of where it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import InputError
from .sizes import (
    FP8,
    FP8_LAYOUTS,
    KIND_LAYOUTS,
    QUANTISED_INDEX,
    attention_row_bytes,
    compressed_row_bytes,
    fp8_ds_mla_row_bytes,
    index_row_bytes,
    kv_heads_on_rank,
    latent_row_bytes,
)

LayerKind = Literal["attention", "mla", "compressed", "cross", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAShape:
    """Widths of multi-head latent attention; q_lora_rank None: full-rank queries, qk_rope_head_dim 0: no rotary part."""

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None

    @property
    def latent_dim(self) -> int:
        """Elements of one cached row: kv_lora_rank + qk_rope_head_dim."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Query/key width per head: qk_nope_head_dim + qk_rope_head_dim."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerShape:
    """The scorer that picks `topk` tokens per query; owns is False on layers that reuse an earlier layer's choice."""

    topk: int
    num_heads: int
    head_dim: int
    pool: int = 1
    owns: bool = True

    @property
    def width(self) -> int:
        """Row width of the top-k buffer: topk, or topk + pool - 1 rounded up to 128 where keys are pooled."""
        if self.pool <= 1:
            return self.topk
        return (self.topk + self.pool - 1 + 127) // 128 * 128


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSparseShape:
    """Attention to the best `topk_blocks` blocks of `block_size` keys, scored by num_heads index heads of head_dim.

    One index key is cached per `tokens_per_key` tokens.
    """

    topk_blocks: int
    block_size: int
    num_heads: int
    head_dim: int
    tokens_per_key: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One layer. Counts are the model's, not a rank's; an MLA layer has head_dim = nope + rope and num_kv_heads = num_heads.

    A compressed layer keeps a window of shared K=V rows whose last rope_head_dim lanes are rotary, and with a compress_ratio
    above 0 also one entry per that many tokens, which it reads from entry_source (its own id when it makes them).
    entries_overlap: whether an entry also holds what the group before left for it; None where the config does not say.
    """

    layer_id: int
    kind: LayerKind
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    softmax_scale: float = 1.0
    window: int | None = None
    chunk: int | None = None
    sink: bool = False
    softcap: float | None = None
    causal: bool = True
    position_bias: str | None = None
    kv_source: int = -1
    mla: MLAShape | None = None
    indexer: IndexerShape | None = None
    compress_ratio: int | None = None
    entry_source: int | None = None
    rope_head_dim: int | None = None
    block_sparse: BlockSparseShape | None = None
    entries_overlap: bool | None = None

    def __post_init__(self) -> None:
        if self.kv_source < 0:
            object.__setattr__(self, "kv_source", self.layer_id)

    @property
    def owns_kv(self) -> bool:
        """Whether this layer has a cache of its own."""
        return self.kind in ("attention", "mla", "compressed") and self.kv_source == self.layer_id

    @property
    def owns_entries(self) -> bool:
        """Whether this layer makes compressed entries, for itself and for the layers that read them."""
        return bool(self.compress_ratio) and self.entry_source == self.layer_id

    @property
    def compress_span(self) -> int:
        """Tokens that one compressed entry is made of, 0 without a ratio.

        Where the config does not say, groups overlap if an indexer picks entries: so it is with DeepSeek-V4's groups of 4;
        V4.1's of 1 and 2 tokens do not overlap.
        """
        ratio = self.compress_ratio or 0
        overlap = self.indexer is not None and ratio > 2 if self.entries_overlap is None else self.entries_overlap
        return ratio * 2 if overlap else ratio

    @property
    def tokens_per_index_key(self) -> int:
        """Tokens that share one cached index key: the compress ratio, or the pool of an indexer that pools its keys."""
        if self.indexer is None:
            return 1
        return self.compress_ratio or self.indexer.pool

    @property
    def kv_layouts(self) -> tuple[str, ...]:
        """The cache layouts that a layer of this kind can have, the unquantised one first; none where it caches nothing."""
        return KIND_LAYOUTS.get(self.kind, ())

    @property
    def family(self) -> str:
        """The kind with sparse MLA told apart: attention, mla, sparse_mla, compressed, cross or none."""
        return "sparse_mla" if self.kind == "mla" and self.indexer is not None else self.kind

    def resolve_layout(self, kv_layout: str) -> str:
        """The layout by its own name: "fp8" is the one that this family of layers has, "auto" where it caches nothing."""
        return FP8_LAYOUTS.get(self.family, "auto") if kv_layout == FP8 else kv_layout

    def kv_bytes_per_token(self, kv_layout: str = "auto", dtype: object = "bfloat16", tp: int = 1) -> int:
        """Bytes of one cached token of this layer on one rank; 0 where it owns no KV.

        InputError: a layout that the kind cannot use.
        """
        if not self.owns_kv:
            return 0
        kv_layout = self.resolve_layout(kv_layout)
        if self.mla is not None:
            return _mla_bytes(self.mla, kv_layout, dtype)
        if self.kind == "compressed":
            return _compressed_bytes(self, kv_layout, dtype)
        heads = kv_heads_on_rank(self.num_kv_heads, tp)
        if kv_layout in ("auto", "kv"):
            return attention_row_bytes(heads, self.head_dim, self.v_head_dim, dtype)
        if kv_layout == "kv_fp8":
            return attention_row_bytes(heads, self.head_dim, self.v_head_dim, "float8_e4m3fn")
        raise InputError(f"layer {self.layer_id} (attention) cannot be cached as {kv_layout!r}; use 'kv', 'kv_fp8' or 'fp8'")

    def index_bytes_per_token(self, kv_layout: str = "auto", dtype: object = "bfloat16") -> int:
        """Bytes of one index key of this layer, which serves tokens_per_index_key tokens; 0 where it scores nothing.

        Keys of the given dtype, or quantised ones with "indexer_fp8" and with the layouts that quantise latents.
        """
        is_quantised = self.resolve_layout(kv_layout) in QUANTISED_INDEX
        if self.block_sparse is not None:
            per_key = index_row_bytes(self.block_sparse.head_dim, dtype, quantised=is_quantised)
            return -(-per_key // self.block_sparse.tokens_per_key)
        if self.indexer is None or not self.indexer.owns:
            return 0
        return index_row_bytes(self.indexer.head_dim, dtype, quantised=is_quantised)


def _mla_bytes(mla: MLAShape, kv_layout: str, dtype: object) -> int:
    if kv_layout in ("auto", "latent"):
        return latent_row_bytes(mla.kv_lora_rank, mla.qk_rope_head_dim, dtype)
    if kv_layout == "latent_fp8":
        return latent_row_bytes(mla.kv_lora_rank, mla.qk_rope_head_dim, "float8_e4m3fn")
    if kv_layout == "fp8_ds_mla":
        return fp8_ds_mla_row_bytes(mla.kv_lora_rank, mla.qk_rope_head_dim)
    raise InputError(f"an MLA layer cannot be cached as {kv_layout!r}; use 'latent', 'latent_fp8', 'fp8_ds_mla' or 'fp8'")


def _compressed_bytes(layer: LayerShape, kv_layout: str, dtype: object) -> int:
    if kv_layout in ("auto", "latent"):
        return latent_row_bytes(layer.head_dim, 0, dtype)
    if kv_layout == "compressed":
        return compressed_row_bytes(layer.head_dim, layer.rope_head_dim or 0)
    raise InputError(f"a compressed layer cannot be cached as {kv_layout!r}; use 'latent', 'compressed' or 'fp8'")
