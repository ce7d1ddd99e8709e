"""The layers of an opened plan, each bound to its calls, its caches and its rule, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hal.common.contract.cache import CacheKey
from hal.common.contract.call_values import KVCache
from hal.common.contract.masking import masking_of
from hal.common.contract.step import mla_kind
from hal.config import LayerShape, MLAShape

from .choice import TopkState
from .compressed_layer import CompressedLayer
from .compressed_rows import CompressedRows
from .index_owner import IndexOwner
from .latent import LatentAttention, MLAWeights
from .latent_layer import LatentLayer
from .layer_kernels import LayerKernels
from .paged_layer import PagedLayer
from .places import BoundTo, Place
from .ranks import DCPGroup

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan

BoundLayer = PagedLayer | LatentLayer | CompressedLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What layers are bound to, of an opened plan. kernels: by layer id, of those layers that are attended to."""

    plan: Plan
    kernels: Mapping[int, LayerKernels]
    device: torch.device
    topk: TopkState
    rows: CompressedRows
    can_mask: bool
    ranks: DCPGroup | None

    def bind(self, caches: Mapping[CacheKey, KVCache], weights: Mapping[int, MLAWeights]) -> dict[int, BoundLayer]:
        """Every layer by its id, on these caches and, for MLA, with these up-projections."""
        groups = {spec.key: spec.group for spec in self.plan.cache_specs()}
        places = {key: Place(caches[key], group) for key, group in groups.items()}
        layers = (self.plan.shape.layer(layer_id) for layer_id in self.kernels)
        return {layer.layer_id: self._bind(layer, places, weights.get(layer.layer_id)) for layer in layers}

    def _bind(self, layer: LayerShape, places: Mapping[CacheKey, Place], weights: MLAWeights | None) -> BoundLayer:
        dtype: torch.dtype = getattr(torch, self.plan.dtype)
        bound = BoundTo(
            layer=layer,
            kernels=self.kernels[layer.layer_id],
            num_heads=layer.num_heads // self.plan.parallel.tp,
            dtype=dtype,
            device=self.device,
        )
        if layer.kind == "compressed":
            return self._bind_compressed(bound, places)
        if layer.mla is not None:
            return self._bind_latent(bound, layer.mla, places, weights)
        return self._bind_paged(bound, places[layer.kv_source])

    def _bind_paged(self, bound: BoundTo, place: Place) -> PagedLayer:
        layer = bound.layer
        k_shape, v_shape = place.cache.layout.parts
        return PagedLayer(
            bound=bound,
            place=place,
            masking=masking_of(layer),
            q_shape=(bound.num_heads, layer.head_dim),
            out_shape=(bound.num_heads, layer.v_head_dim),
            k_shape=k_shape if layer.owns_kv else None,
            v_shape=v_shape,
            ranks=self.ranks,
        )

    def _bind_latent(
        self, bound: BoundTo, mla: MLAShape, places: Mapping[CacheKey, Place], weights: MLAWeights | None
    ) -> LatentLayer:
        layer = bound.layer
        way = LatentAttention(
            bound=bound,
            mla=mla,
            place=places[layer.kv_source],
            masking=masking_of(layer),
            kind=mla_kind(layer),
            parallel=self.plan.parallel,
            can_mask=self.can_mask,
            topk=None if layer.indexer is None else self.topk,
            ranks=self.ranks,
            weights=weights,
        )
        return LatentLayer(way=way, index=self._bind_index(bound, places))

    def _bind_compressed(self, bound: BoundTo, places: Mapping[CacheKey, Place]) -> CompressedLayer:
        layer = bound.layer
        return CompressedLayer(
            bound=bound,
            window=places[layer.kv_source],
            entries=None if layer.entry_source is None else places[layer.entry_source, "entries"],
            states=places.get((layer.layer_id, "state")),
            index=self._bind_index(bound, places),
            topk=None if layer.indexer is None else self.topk,
            rows=self.rows,
            parallel=self.plan.parallel,
        )

    def _bind_index(self, bound: BoundTo, places: Mapping[CacheKey, Place]) -> IndexOwner | None:
        layer = bound.layer
        if layer.indexer is None or not layer.indexer.owns:
            return None
        return IndexOwner(
            bound=bound,
            indexer=layer.indexer,
            keys=places[layer.layer_id, "index"],
            states=places.get((layer.layer_id, "index_state")),
            topk=self.topk,
        )
