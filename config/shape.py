"""What hal knows of a model: frozen, complete, and independent of where it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .capacity import cross_kv_bytes_per_token, kv_bytes, max_tokens
from .errors import InputError, UnknownLayerError
from .notes import say_notes
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
from .table import format_shape

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One model, read once.

    text_path: where the text config was found, "" for the root; it and the warnings do not count in ==.
    cross_attention: every attending decoder layer also attends to an encoder's output, whose KV is not among the sizes.
    """

    model_type: str
    architectures: tuple[str, ...]
    text_path: str = field(compare=False)
    hidden_size: int
    vocab_size: int
    num_layers: int
    max_position_embeddings: int | None
    dtype: str | None
    tie_word_embeddings: bool
    layers: tuple[LayerShape, ...]
    draft_layers: tuple[LayerShape, ...] = ()
    cross_attention: bool = False
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def layer(self, layer_id: int) -> LayerShape:
        """Layer by id; ids from num_layers on are the draft (MTP) layers. UnknownLayerError has the valid range."""
        known = self.layers + self.draft_layers
        if not hasattr(layer_id, "__index__") or not 0 <= layer_id < len(known):
            raise UnknownLayerError(
                f"layer {layer_id!r} is not in this model: ids 0 to {self.num_layers - 1}, "
                f"and {len(self.draft_layers)} draft layers after them"
            )
        return known[layer_id]

    @property
    def is_mla(self) -> bool:
        """Whether any layer is MLA."""
        return any(layer.mla is not None for layer in self.layers)

    @property
    def is_sparse(self) -> bool:
        """Whether any layer attends to an indexer's choice."""
        return any(layer.indexer is not None for layer in self.layers)

    @property
    def index_topk(self) -> int | None:
        """Tokens an indexer picks per query, None without one."""
        return next((layer.indexer.topk for layer in self.layers if layer.indexer), None)

    def layout_of(self, layer: LayerShape, kv_layout: str) -> str:
        """What a layer takes where the model is asked for a layout: that, or "auto" where only other kinds of layers have it.

        "fp8" is the one of each layer's own family.
        """
        kv_layout = layer.resolve_layout(kv_layout)
        if (
            kv_layout == "auto"
            or kv_layout in layer.kv_layouts
            or not any(kv_layout in other.kv_layouts for other in self.layers)
        ):
            return kv_layout
        return "auto"

    def kv_bytes_per_token(self, kv_layout: str = "auto", dtype: object = "bfloat16", tp: int = 1) -> int:
        """Bytes of one token over all layers that own KV, on one rank; windows count in full, index and cross KV do not.

        Layers whose kind cannot have the layout count as "auto" beside some that can; InputError where none can.
        """
        return sum(layer.kv_bytes_per_token(self.layout_of(layer, kv_layout), dtype, tp) for layer in self.layers)

    def index_bytes_per_token(self, kv_layout: str = "auto", dtype: object = "bfloat16") -> int:
        """Bytes of one token's index keys over the layers that own an indexer."""
        return sum(layer.index_bytes_per_token(self.layout_of(layer, kv_layout), dtype) for layer in self.layers)

    @property
    def is_block_sparse(self) -> bool:
        """Whether any layer attends to blocks of keys that a scorer picks."""
        return any(layer.block_sparse is not None for layer in self.layers)

    def cross_kv_bytes_per_token(self, dtype: object = "bfloat16", tp: int = 1) -> int:
        """Bytes of one encoder token's keys and values over the layers that attend to an encoder or an image."""
        return cross_kv_bytes_per_token(self, dtype, tp)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the sizes of this shape leave out, in words: the keys and values of cross attention."""
        return say_notes(self)

    def kv_bytes(self, length: int, kv_layout: str = "auto", dtype: object = "bfloat16", tp: int = 1) -> int:
        """Bytes that a sequence of this many tokens keeps on one rank, index keys included; windows keep only their own."""
        return kv_bytes(self, length, kv_layout, dtype, tp)

    def max_tokens(
        self, memory_bytes: int, kv_layout: str = "auto", dtype: object = "bfloat16", tp: int = 1, num_seqs: int = 1
    ) -> int | None:
        """The longest length that num_seqs sequences can all have in this memory; None where no length is too long.

        The inverse of kv_bytes: a model with windows holds more tokens than memory / kv_bytes_per_token.
        """
        return max_tokens(self, memory_bytes, kv_layout, dtype, tp, num_seqs)

    def __str__(self) -> str:
        """A table of the layers, equal ones together, 100 columns wide."""
        return format_shape(self)
