"""A layer's index keys of a step: checked, then written as they are or compressed first."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hal.common.contract.call_values import CompressedBatch, IndexInputs, KVCache
from hal.common.contract.compressor import Compressor
from hal.common.contract.errors import BatchError, NotBuiltError
from hal.common.contract.step import StepMetadata
from hal.common.contract.tensor_checks import Expected
from hal.config import IndexerShape, LayerShape

from .layer_kernels import LayerKernels

Find = Callable[[tuple[int, str]], tuple[KVCache, int]]


def check_index(layer: LayerShape, indexer: IndexerShape, kernels: LayerKernels, index: IndexInputs, expected: Expected) -> None:
    """Raise LayoutError for inputs of another shape or type, BatchError for a compressor where keys are not shared."""
    if not isinstance(index, IndexInputs):
        raise BatchError(f"layer {layer.layer_id}: index is a {type(index).__name__}; expected hal.IndexInputs(q, k, weights)")
    heads, width = indexer.num_heads, indexer.head_dim
    tensors = {"index.q": (index.q, (heads, width)), "index.weights": (index.weights, (heads,))}
    if not isinstance(index.k, Compressor):
        expected.check_floats(**tensors, **{"index.k": (index.k, (width,))})
        return
    if layer.kind != "compressed" and indexer.pool == 1:
        raise BatchError(f"layer {layer.layer_id} keeps an index key per token; index.k must be a tensor and no compressor")
    if not kernels.provides("compress_states"):
        raise NotBuiltError(
            f"no backend of layer {layer.layer_id} compresses states yet; bring index.k as keys that are pooled already, "
            "each at its pool's last token"
        )
    expected.check_floats(**tensors)
    ratio = layer.tokens_per_index_key
    groups = max(1, layer.compress_span // ratio)
    index.k.check(f"layer {layer.layer_id}: index.k", expected.tokens, ratio, groups, width, None, expected.device)


def write_index_keys(
    layer: LayerShape, kernels: LayerKernels, find: Find, keys: torch.Tensor | Compressor, metadata: StepMetadata
) -> None:
    """Write the keys, one per token, or those of tokens that close a group where tokens share a key."""
    cache, group = find((layer.layer_id, "index"))
    if isinstance(keys, Compressor):
        compress(kernels, keys, find((layer.layer_id, "index_state")), (cache, group), metadata, layer.tokens_per_index_key)
    else:
        kernels.calls.write_cache(cache, metadata.groups[group].slot_mapping, keys)


def compress(
    kernels: LayerKernels,
    compressor: Compressor,
    states: tuple[KVCache, int],
    entries: tuple[KVCache, int],
    metadata: StepMetadata,
    ratio: int,
) -> None:
    """Write the step's states and the entries that its tokens close; states and entries are a cache and its group."""
    where = metadata.groups[states[1]]
    batch = CompressedBatch(
        state_slots=where.slot_mapping,
        entry_slots=metadata.groups[entries[1]].slot_mapping,
        query_start_loc=metadata.query_start_loc,
        req_id=metadata.req_id_per_token,
        positions=metadata.positions,
        block_table=where.batch.block_table,
    )
    kernels.calls.compress_states(compressor, states[0], entries[0], batch, ratio=ratio)
