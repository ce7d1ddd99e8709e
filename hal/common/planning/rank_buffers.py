"""What a rank of a DCP group keeps and moves beside its caches."""

from __future__ import annotations

from hal.common.contract.buffer import Buffer
from hal.common.contract.key_rules import list_rules
from hal.common.contract.limits import Limits
from hal.common.contract.parallel import Parallel
from hal.config import LayerShape, ModelShape
from hal.config.dtypes import item_size


def rank_buffers(shape: ModelShape, limits: Limits, parallel: Parallel, dtype: str) -> tuple[Buffer, ...]:
    """Key ranges and shares, kept; gathered queries, partial results and index candidates of one layer. None for one rank.

    A full step's, with heads divided over the group where there is tensor parallelism.
    """
    layers = [layer for layer in shape.layers if layer.kind in ("attention", "mla")]
    if parallel.dcp == 1 or not layers:
        return ()
    tokens, ranks = limits.max_num_batched_tokens, parallel.dcp
    buffers = [
        Buffer(name="key ranges", shape=(2, len(list_rules(layers)), tokens), dtype="int32"),
        Buffer(name="shares", shape=(2, limits.max_num_seqs), dtype="int32"),
    ]
    if parallel.tp > 1:
        elements = max(_heads(layer, parallel) * _key_width(layer) for layer in layers)
        buffers.append(Buffer(name="gathered queries", shape=(ranks, tokens, elements), dtype=dtype, transient=True))
    # An fp32 LSE travels with each head's values.
    lanes = 4 // item_size(dtype) or 1
    elements = max(_heads(layer, parallel) * (_value_width(layer) + lanes) for layer in layers)
    buffers.append(Buffer(name="partial results", shape=(2, ranks, tokens, elements), dtype=dtype, transient=True))
    topk = max((layer.indexer.topk for layer in layers if layer.indexer is not None), default=0)
    if topk:
        # A chunk scores each token against more keys than it keeps, so the cap on scores bounds its tokens.
        rows = min(tokens, max(1, limits.max_logits_bytes // (4 * topk)))
        buffers.append(Buffer(name="index candidates", shape=(ranks, rows, 2 * topk + 1), dtype="int32", transient=True))
    return tuple(buffers)


def _heads(layer: LayerShape, parallel: Parallel) -> int:
    return max(1, layer.num_heads // parallel.tp)


def _key_width(layer: LayerShape) -> int:
    return layer.mla.latent_dim if layer.mla is not None else layer.head_dim


def _value_width(layer: LayerShape) -> int:
    return layer.mla.kv_lora_rank if layer.mla is not None else layer.v_head_dim
