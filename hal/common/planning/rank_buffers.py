"""What a rank of a DCP group keeps and moves beside its caches."""

from __future__ import annotations

from hal.common.contract.buffer import Buffer
from hal.common.contract.exchanges import rows_at_once, tokens_at_once
from hal.common.contract.limits import Limits
from hal.common.contract.masking import list_sights
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
        Buffer(name="key ranges", shape=(2, len(list_sights(layers)), tokens), dtype="int32"),
        Buffer(name="shares", shape=(2, limits.max_num_seqs), dtype="int32"),
    ]
    rows = {layer.layer_id: _rows_at_once(layer, parallel, tokens, dtype) for layer in layers}
    if parallel.tp > 1:
        most = max(layers, key=lambda layer: rows[layer.layer_id] * _key_width(layer))
        shape_of_all = (rows[most.layer_id], _key_width(most))
        buffers.append(Buffer(name="gathered queries", shape=shape_of_all, dtype=dtype, transient=True))
    most = max(layers, key=lambda layer: rows[layer.layer_id] * _result_width(layer, dtype))
    shape_of_both = (2, rows[most.layer_id], _result_width(most, dtype))
    buffers.append(Buffer(name="partial results", shape=shape_of_both, dtype=dtype, transient=True))
    topk = max((layer.indexer.topk for layer in layers if layer.indexer is not None), default=0)
    if topk:
        # A chunk scores each token against more keys than it keeps, so the cap on scores bounds its tokens.
        count = tokens_at_once(min(tokens, max(1, limits.max_logits_bytes // (4 * topk))), ranks, topk)
        buffers.append(Buffer(name="index candidates", shape=(ranks, count, 2 * topk + 1), dtype="int32", transient=True))
    return tuple(buffers)


def _rows_at_once(layer: LayerShape, parallel: Parallel, tokens: int, dtype: str) -> int:
    """Results in one exchange: heads of one latent may go in any number, those of KV heads go together."""
    heads = _heads(layer, parallel)
    if layer.mla is None:
        return parallel.dcp * tokens * heads
    return rows_at_once(heads, parallel.dcp, tokens, item_size(dtype) * _result_width(layer, dtype))


def _result_width(layer: LayerShape, dtype: str) -> int:
    """A head's values, and the fp32 LSE that travels with them."""
    return _value_width(layer) + (4 // item_size(dtype) or 1)


def _heads(layer: LayerShape, parallel: Parallel) -> int:
    return max(1, layer.num_heads // parallel.tp)


def _key_width(layer: LayerShape) -> int:
    return layer.mla.latent_dim if layer.mla is not None else layer.head_dim


def _value_width(layer: LayerShape) -> int:
    return layer.mla.kv_lora_rank if layer.mla is not None else layer.v_head_dim
