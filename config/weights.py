"""How many parameters the text part of a model has, counted from its config alone; read only where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from .dtypes import item_size
from .fields import Fields
from .layer_shape import LayerShape
from .shape import ModelShape
from .source import open_source
from .text_config import locate_text

_WIDTH = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim")
_DENSE_WIDTH = ("intermediate_size_mlp", "dense_intermediate_size", *_WIDTH)
_EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "expert_hidden_dim", *_WIDTH)
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_moe_experts")
_SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
_ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
_PLAIN_ACTIVATIONS = frozenset({"gelu", "gelu_new", "gelu_fast", "quick_gelu", "relu", "relu2"})
"""Activations of feed-forwards of two matrices; the others, silu before all, go with a third that gates."""


_BITS = {"fp8": 8, "fbgemm_fp8": 8, "finegrained_fp8": 8, "mxfp4": 4}
"""Bits per weight of the quantisations whose configs do not state them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters by what tensor parallelism does with them: those it divides over its ranks, and those every rank has.

    embeddings: those of the first that are embeddings, which no quantisation touches. stored_bits: of one of the others as
    the config's quantisation has it, None where there is none.
    """

    divided: int
    replicated: int
    embeddings: int
    stored_bits: int | None = None

    @property
    def total(self) -> int:
        """All of them, as one rank alone holds them."""
        return self.divided + self.replicated

    def bytes_on_rank(self, dtype: object, tp: int = 1) -> int:
        """Bytes of one of tp ranks, what is not quantised in a dtype."""
        width = item_size(dtype)
        stored = width if self.stored_bits is None else self.stored_bits / 8
        divided = self.embeddings * width + (self.divided - self.embeddings) * stored
        return ceil(divided / tp + self.replicated * stored)


def count_parameters(source: object, shape: ModelShape) -> ParameterCount:
    """The parameters of the text model that a source describes, whose shape was read from it; draft layers not among them.

    Projections, experts and embeddings by their widths, with the usual names for what attention does not need; norms, biases,
    convolutions of linear attention and towers of other media are left out. ConfigError for a field that cannot be meant.
    """
    fields = Fields(locate_text(open_source(source)), {})
    hidden = shape.hidden_size
    embeddings = shape.vocab_size * hidden * (1 if shape.tie_word_embeddings else 2)
    divided, replicated = embeddings, 0
    dense, sparse = _feed_forward(fields, hidden), _experts(fields, hidden)
    # A stack that runs several times has its weights once.
    layers = shape.layers[: shape.num_layers // (fields.count("total_ut_steps") or 1)]
    blocks = _expert_layers(fields, len(layers)) if sparse else [False] * len(layers)
    lone = _lone_blocks(fields, len(layers))
    for layer, has_experts, block in zip(layers, blocks, lone, strict=True):
        own, shared = (0, 0) if block in ("E", "-") else _attention(layer, hidden)
        behind = 0 if block in ("M", "*") else sparse if block == "E" or (block == "" and has_experts) else dense
        divided += own + behind
        replicated += shared + (hidden * _count(fields, _EXPERTS) if behind and behind == sparse else 0)
    bits = _stored_bits(fields)
    return ParameterCount(divided=divided, replicated=replicated, embeddings=embeddings, stored_bits=bits)


def _stored_bits(fields: Fields) -> int | None:
    group = fields.nested("quantization_config")
    if group is None:
        return None
    bits, method = group.read("bits"), group.read("quant_method")
    known = _BITS.get(method) if isinstance(method, str) else None
    return bits if isinstance(bits, int) and 0 < bits <= 32 else known


def _attention(layer: LayerShape, hidden: int) -> tuple[int, int]:
    """A layer's projections: what is divided by heads, and what every rank needs whole."""
    if layer.kind == "none":
        # Linear attention and its kin: four matrices of the model's width, whatever they are called.
        return 4 * hidden * hidden, 0
    queries, values = layer.num_heads * layer.head_dim, layer.num_heads * layer.v_head_dim
    if layer.mla is not None:
        mla = layer.mla
        up = layer.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank
        query = queries * (mla.q_lora_rank or hidden)
        down = hidden * (mla.latent_dim + (mla.q_lora_rank or 0))
        return up + query + values * hidden, down + _indexer(layer, hidden)
    if layer.kind == "compressed":
        # Keys are values; each compressor has a projection for what it mixes and one for its weights.
        groups = layer.compress_span // (layer.compress_ratio or 1)
        mixing = 2 * groups * layer.head_dim * hidden if layer.owns_entries else 0
        return 2 * queries * hidden, layer.head_dim * hidden + mixing + _indexer(layer, hidden)
    keys = layer.num_kv_heads * (layer.head_dim + layer.v_head_dim) if layer.owns_kv or layer.kind == "cross" else 0
    return (queries + keys + values) * hidden, 0


def _indexer(layer: LayerShape, hidden: int) -> int:
    indexer = layer.indexer
    if indexer is None or not indexer.owns:
        return 0
    query_width = layer.mla.q_lora_rank if layer.mla is not None and layer.mla.q_lora_rank else hidden
    return indexer.num_heads * indexer.head_dim * query_width + hidden * (indexer.head_dim + indexer.num_heads)


def _lone_blocks(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """What each layer is where it is one block alone: M linear, * attention, E experts, - dense; "" where it is both."""
    pattern = fields.text("hybrid_override_pattern") or ""
    return tuple(pattern) if len(pattern) == num_layers else ("",) * num_layers


def _feed_forward(fields: Fields, hidden: int) -> int:
    width = _count(fields, _DENSE_WIDTH)
    # Unstated, it is four times the model's width, or two thirds of that where a third matrix gates.
    return _matrices(fields) * hidden * width if width else 8 * hidden * hidden


def _experts(fields: Fields, hidden: int) -> int:
    """A layer of experts, those that every token takes included; 0 where the config names none."""
    count, width = _count(fields, _EXPERTS), _count(fields, _EXPERT_WIDTH)
    shared = _count(fields, _SHARED_WIDTH) or _count(fields, _SHARED_EXPERTS) * width
    return _matrices(fields) * hidden * (count * width + shared) if count > 1 else 0


def _matrices(fields: Fields) -> int:
    named = next((found for name in _ACTIVATION if (found := fields.text(name)) is not None), "")
    return 2 if named in _PLAIN_ACTIVATIONS else 3


def _expert_layers(fields: Fields, num_layers: int) -> list[bool]:
    """Which layers have experts, by whichever of the usual fields says so; all where none does."""
    named = fields.sequence("mlp_layer_types")
    if named is not None and len(named) == num_layers:
        return [kind != "dense" for kind in named]
    frequency = fields.raw("moe_layer_freq")
    if isinstance(frequency, (list, tuple)) and len(frequency) == num_layers:
        return [bool(each) for each in frequency]
    step = _count(fields, ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "route_every_n")) or 1
    first = _count(fields, ("first_k_dense_replace", "num_dense_layers"))
    dense = frozenset(item for item in fields.sequence("mlp_only_layers") or () if isinstance(item, int))
    return [i >= first and i not in dense and (i + 1) % step == 0 for i in range(num_layers)]


def _count(fields: Fields, names: tuple[str, ...]) -> int:
    """The first whole number above 0 under one of these names, else 0; lists, one width per layer, give their mean."""
    return next(_numbers(fields, names), 0)


def _numbers(fields: Fields, names: tuple[str, ...]) -> Iterator[int]:
    group = fields.nested("moe")
    for name in names:
        # What a class fills in was worked out for the width of its own defaults.
        for value in (fields.raw(name) if fields.states(name) else None, group.read(name) if group else None):
            if isinstance(value, (list, tuple)) and value and all(isinstance(each, int) for each in value):
                yield sum(value) // len(value)
            elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
                yield value
