"""A layer's own indexer, bound: its inputs checked, its keys written as they are or compressed first, and its choice made."""

from __future__ import annotations

from dataclasses import dataclass

from hal.common.contract.call_values import IndexInputs
from hal.common.contract.compressor import Compressor
from hal.common.contract.errors import BatchError, NotBuiltError
from hal.common.contract.step import StepMetadata
from hal.common.contract.tensor_checks import Expected
from hal.config import IndexerShape

from .choice import TopkState
from .compressing import compress
from .places import BoundTo, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOwner:
    """keys: the cache of index keys; states: what a compressor remembers of them, None where each is a token's own."""

    bound: BoundTo
    indexer: IndexerShape
    keys: Place
    states: Place | None
    topk: TopkState

    def check(self, index: IndexInputs, expected: Expected) -> None:
        """Raise LayoutError for inputs of another shape or type, BatchError for a compressor where keys are not shared."""
        layer, indexer = self.bound.layer, self.indexer
        if not isinstance(index, IndexInputs):
            raise BatchError(
                f"layer {layer.layer_id}: index is a {type(index).__name__}; expected hal.IndexInputs(q, k, weights)"
            )
        heads, width = indexer.num_heads, indexer.head_dim
        tensors = {"index.q": (index.q, (heads, width)), "index.weights": (index.weights, (heads,))}
        if not isinstance(index.k, Compressor):
            expected.check_floats(**tensors, **{"index.k": (index.k, (width,))})
            return
        if layer.kind != "compressed" and indexer.pool == 1:
            raise BatchError(f"layer {layer.layer_id} keeps an index key per token; index.k must be a tensor and no compressor")
        if not self.bound.kernels.provides("compress_states"):
            raise NotBuiltError(
                f"no backend of layer {layer.layer_id} compresses states yet; bring index.k as keys that are pooled already, "
                "each at its pool's last token"
            )
        expected.check_floats(**tensors)
        ratio = layer.tokens_per_index_key
        groups = max(1, layer.compress_span // ratio)
        index.k.check(f"layer {layer.layer_id}: index.k", expected.tokens, ratio, groups, width, None, expected.device)

    def write(self, index: IndexInputs, metadata: StepMetadata) -> None:
        """Write the keys, one per token, or those of tokens that close a group where tokens share a key."""
        kernels, layer = self.bound.kernels, self.bound.layer
        if not isinstance(index.k, Compressor):
            kernels.calls.write_cache(self.keys.cache, self.keys.slots(metadata), index.k)
            return
        if self.states is None:
            raise TypeError(f"layer {layer.layer_id} compresses index keys and has no cache for their states")
        compress(kernels, index.k, self.states, self.keys, metadata, layer.tokens_per_index_key)

    def choose(self, index: IndexInputs, metadata: StepMetadata) -> None:
        """Score the step's queries against the keys that are written, and keep the best of each."""
        self.topk.choose(self.bound.layer, self.bound.kernels, *self.keys, index, metadata)
