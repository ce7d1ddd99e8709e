"""A model's attention, opened: caches, builder and kernels behind two calls per layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from hal.config import LayerShape

from .backend import Backend
from .batch import Batch
from .errors import BackendError, BatchError, CapacityError, LayoutError, NotBuiltError
from .kernels import IndexInputs, KVCache
from .metadata import MetadataBuilder
from .mla import MLAWeights, attend_mla
from .pages import PagePool
from .registry import find_backend
from .step import StepMetadata
from .topk import TopkState

if TYPE_CHECKING:
    from .plan import CacheSpec, Plan

CacheKey = int | tuple[int, str]


class LayerKernels:
    """The calls of one layer, each from the backend that provides it: layer_kernels("write_cache"), ("sparse_mla", "decode")."""

    def __init__(self, providers: Mapping[str, str], opened: Mapping[str, Backend]) -> None:
        self._calls = {key: getattr(opened[name], key.partition(".")[0]) for key, name in providers.items()}

    def __call__(self, call: str, phase: str = "") -> Any:
        return self._calls[f"{call}.{phase}" if phase else call]


class Attention:
    """Attention over paged caches for every layer of a plan; made by plan.open or plan.bind."""

    def __init__(self, plan: Plan, caches: Mapping[CacheKey, KVCache], num_blocks: int) -> None:
        self.plan = plan
        self.pages = PagePool(num_blocks)
        self.compile_misses = 0
        self.caches = dict(caches)
        device = plan.device
        if device.torch_device is None:
            raise BackendError(f"{device.target} is not on this machine: nothing can run there; plan for it, or open elsewhere")
        opened = _open_backends(plan)
        self._kernels = {
            layer.layer_id: LayerKernels(selection.providers, opened)
            for layer, selection in zip(plan.shape.layers, plan.selections, strict=True)
            if selection is not None
        }
        self._groups = {spec.key: spec.group for spec in plan.cache_specs()}
        self._weights: dict[int, MLAWeights] = {}
        self._arithmetic = _arithmetic(plan, opened)
        self._builder = MetadataBuilder(plan, num_blocks, device.torch_device, can_mask=_can_mask(opened))
        self._topk = TopkState(plan, device.torch_device)

    def build(self, batch: Batch) -> StepMetadata:
        """The metadata of a step, in persistent buffers that the next build() overwrites; BatchError before any is."""
        return self._builder.build(batch)

    def build_for_capture(self, num_reqs: int, num_tokens: int) -> StepMetadata:
        """The metadata of a made-up step of this size."""
        return self._builder.build_for_capture(num_reqs, num_tokens)

    def warm_up(self) -> None:
        """Compile every launch of the plan's list; nothing to do where no launch compiles."""
        for key in self.plan.warmup_keys():
            raise NotBuiltError(f"warming up {key} is not written yet")

    def bind_weights(self, layer_id: int, w_uk: torch.Tensor, w_uv: torch.Tensor) -> None:
        """Hand over an MLA layer's up-projections, once: w_uk [heads, nope, lora], w_uv [heads, v, lora], this rank's heads.

        They are kept as they are, or as a copy in the type the backend computes in.
        """
        layer = self._layer(layer_id, "mla")
        mla = layer.mla
        heads = layer.num_heads // self.plan.parallel.tp
        if mla is None:
            raise LayoutError(f"layer {layer_id} is not MLA, so it has no up-projections")
        for name, weight, width in (("w_uk", w_uk, mla.qk_nope_head_dim), ("w_uv", w_uv, mla.v_head_dim)):
            expected = (heads, width, mla.kv_lora_rank)
            if tuple(weight.shape) != expected:
                raise LayoutError(f"layer {layer_id}: {name} has shape {list(weight.shape)}; expected {list(expected)}")
        self._weights[layer_id] = MLAWeights(w_uk=w_uk.to(self._arithmetic), w_uv=w_uv.to(self._arithmetic))

    def attend(
        self,
        layer_id: int,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        metadata: StepMetadata,
        sink: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write k, v [tokens, kv_heads, width] to the cache and attend: q [tokens, heads, head_dim] gives out [tokens, heads, v].

        k and v are None on a layer that reads another layer's KV. Rows of padded tokens come back as zeros.
        """
        layer = self._layer(layer_id, "attention")
        self._check_step(metadata)
        cache, group = self._cache(layer.kv_source)
        self._check_tokens(layer, metadata, q=(q, (q.shape[1], layer.head_dim)))
        kernels = self._kernels[layer_id]
        if layer.owns_kv:
            if k is None or v is None:
                raise BatchError(f"layer {layer_id} keeps its own KV, so it needs both k and v")
            self._check_tokens(layer, metadata, k=(k, cache.layout.parts[0]), v=(v, cache.layout.parts[1]))
            kernels("write_cache")(cache, metadata.groups[group].slot_mapping, k, v)
        elif k is not None or v is not None:
            raise BatchError(f"layer {layer_id} reads the KV of layer {layer.kv_source}; k and v must be None")
        self._check_sink(layer, sink, q.shape[1])
        out = _prepare_out(out, q, layer.v_head_dim, metadata)
        order = metadata.token_order
        queries = q if order is None else q.index_select(0, order)
        for phase in metadata.phases:
            result, lse = kernels("paged_attention", phase.name)(
                queries[phase.tokens],
                cache,
                phase.batches[group],
                softmax_scale=layer.softmax_scale,
                window=layer.window,
                chunk=layer.chunk,
                softcap=layer.softcap,
                causal=layer.causal,
                need_lse=sink is not None,
                out=out[phase.tokens] if order is None and sink is None else None,
            )
            if sink is not None:
                result = kernels("apply_sink")(result, lse, sink)
            if order is not None:
                out.index_copy_(0, order[phase.tokens], result)
            elif sink is not None:
                out[phase.tokens] = result
        return out

    def attend_mla(
        self,
        layer_id: int,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor,
        k_rope: torch.Tensor,
        metadata: StepMetadata,
        *,
        index: IndexInputs | None = None,
        topk: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write latent [tokens, lora] and k_rope [tokens, rope] and attend: out [tokens, heads, v_head_dim].

        q_nope [tokens, heads, nope], or [tokens, heads, lora] already absorbed, with out [tokens, heads, lora]. index: on a
        layer that owns an indexer; a layer that shares one uses the owner's choice of this step. topk int32 [tokens, width]
        overrides both.
        """
        layer = self._layer(layer_id, "mla")
        self._check_step(metadata)
        mla = layer.mla
        if mla is None:
            raise LayoutError(f"layer {layer_id} is not MLA; call attend")
        is_absorbed = q_nope.shape[2] == mla.kv_lora_rank and (
            mla.kv_lora_rank != mla.qk_nope_head_dim or layer_id not in self._weights
        )
        nope = mla.kv_lora_rank if is_absorbed else mla.qk_nope_head_dim
        heads = q_nope.shape[1]
        cache, group = self._cache(layer.kv_source)
        self._check_tokens(
            layer,
            metadata,
            q_nope=(q_nope, (heads, nope)),
            q_rope=(q_rope, (heads, mla.qk_rope_head_dim)),
            latent=(latent, (mla.kv_lora_rank,)),
            k_rope=(k_rope, (mla.qk_rope_head_dim,)),
        )
        weights = self._weights.get(layer_id)
        if weights is None and not is_absorbed:
            raise BackendError(f"layer {layer_id} has no up-projections yet; call bind_weights({layer_id}, w_uk, w_uv) once")
        if weights is not None and weights.w_uk.shape[0] != heads:
            raise LayoutError(f"layer {layer_id}: q_nope has {heads} heads, its up-projections {weights.w_uk.shape[0]}")
        self._check_sink(layer, sink, heads)
        kernels = self._kernels[layer_id]
        choice = self._choose(layer, kernels, metadata, index, topk)
        kernels("write_cache")(cache, metadata.groups[group].slot_mapping, latent, k_rope)
        out = _prepare_out(out, q_nope, mla.kv_lora_rank if is_absorbed else mla.v_head_dim, metadata)
        attend_mla(
            layer,
            kernels,
            cache,
            group,
            None if is_absorbed else weights,
            (q_nope, q_rope, latent, k_rope),
            metadata,
            choice,
            sink,
            out,
            self.plan.parallel,
        )
        return out

    def attend_compressed(self, layer_id: int, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        """Not written yet: NotBuiltError."""
        raise NotBuiltError(f"layer {layer_id}: compressed attention is not written yet")

    def _choose(
        self,
        layer: LayerShape,
        kernels: LayerKernels,
        metadata: StepMetadata,
        index: IndexInputs | None,
        topk: torch.Tensor | None,
    ) -> TopkState | None:
        """Write the layer's index keys and choose its keys, or keep the owner's choice; None on a dense layer."""
        indexer = layer.indexer
        if indexer is None:
            if index is not None or topk is not None:
                raise BatchError(f"layer {layer.layer_id} has no indexer; index and topk must be None")
            return None
        if index is not None and not indexer.owns:
            raise BatchError(f"layer {layer.layer_id} shares another layer's indexer; index must be None")
        if index is not None:
            cache, group = self._cache((layer.layer_id, "index"))
            heads, width = indexer.num_heads, indexer.head_dim
            self._check_tokens(
                layer,
                metadata,
                **{
                    "index.q": (index.q, (heads, width)),
                    "index.k": (index.k, (width,)),
                    "index.weights": (index.weights, (heads,)),
                },
            )
            kernels("write_cache")(cache, metadata.groups[group].slot_mapping, index.k)
            if topk is None:
                self._topk.choose(layer, kernels, cache, group, index, metadata)
        elif topk is None and indexer.owns:
            raise BatchError(f"layer {layer.layer_id} owns an indexer, so it needs index (or topk)")
        if topk is not None:
            self._check_tokens(layer, metadata, topk=(topk, (indexer.width,)))
            self._topk.take(layer, topk, metadata)
        self._topk.check(layer, metadata)
        return self._topk

    def _layer(self, layer_id: int, kind: str) -> LayerShape:
        layer = self.plan.shape.layer(layer_id)
        if layer.kind != kind:
            raise BatchError(f"layer {layer_id} is of kind {layer.kind!r}, this call serves {kind!r}")
        return layer

    def _cache(self, key: CacheKey) -> tuple[KVCache, int]:
        return self.caches[key], self._groups[key]

    def _check_step(self, metadata: StepMetadata) -> None:
        if metadata.step_id != self._builder.step_id:
            raise BatchError(
                f"this metadata is of step {metadata.step_id} and its buffers now hold step {self._builder.step_id}; "
                "use what the latest build() returned"
            )

    def _check_tokens(self, layer: LayerShape, metadata: StepMetadata, **tensors: tuple[torch.Tensor, tuple[int, ...]]) -> None:
        tokens = metadata.num_tokens_padded
        for name, (tensor, shape) in tensors.items():
            if tuple(tensor.shape) != (tokens, *shape):
                raise LayoutError(
                    f"layer {layer.layer_id}: {name} has shape {list(tensor.shape)}; expected {[tokens, *shape]} for this step"
                )

    def _check_sink(self, layer: LayerShape, sink: torch.Tensor | None, heads: int) -> None:
        if sink is None:
            if layer.sink:
                raise BatchError(f"layer {layer.layer_id} has attention sinks; pass sink, float [{heads}]")
            return
        if not layer.sink:
            raise BatchError(f"layer {layer.layer_id} has no attention sinks; sink must be None")
        if tuple(sink.shape) != (heads,):
            raise LayoutError(f"layer {layer.layer_id}: sink has shape {list(sink.shape)}; expected [{heads}]")


def open_attention(plan: Plan, num_blocks: int | None, group: Any) -> Attention:
    """An Attention on zero-filled caches of its own; CapacityError where they would not fit."""
    _check_group(group)
    blocks = plan.default_num_blocks() if num_blocks is None else num_blocks
    if blocks < 1:
        raise ValueError(f"num_blocks is {blocks}; expected at least 1")
    device = plan.device
    if device.torch_device is None:
        raise BackendError(f"{device.target} is not on this machine: nothing can run there; plan for it, or open elsewhere")
    needed = blocks * plan.page_bytes
    if device.memory_bytes is not None and needed > device.memory_bytes:
        fit = device.memory_bytes // max(1, plan.page_bytes)
        raise CapacityError(
            f"{blocks} pages take {needed} bytes and {device.target} has {device.memory_bytes}; at most {fit} pages fit"
        )
    caches: dict[CacheKey, KVCache] = {}
    for spec in plan.cache_specs():
        dtype = getattr(torch, spec.layout.dtype)
        storage = torch.zeros(spec.shape(blocks), dtype=dtype, device=device.torch_device)
        caches[spec.key] = KVCache(storage, spec.layout, spec.block_size, spec.block_size)
    return Attention(plan, caches, blocks)


def bind_attention(plan: Plan, tensors: Mapping[CacheKey, torch.Tensor], group: Any) -> Attention:
    """An Attention on the engine's tensors; LayoutError names the spec and the tensor that do not fit."""
    _check_group(group)
    specs = {spec.key: spec for spec in plan.cache_specs()}
    if specs.keys() != tensors.keys():
        raise LayoutError(
            f"caches are missing for {sorted(map(str, specs.keys() - tensors.keys()))} "
            f"and unknown for {sorted(map(str, tensors.keys() - specs.keys()))}; plan.cache_specs() has the keys"
        )
    counts = {key: tensor.shape[0] for key, tensor in tensors.items()}
    if len(set(counts.values())) > 1:
        raise LayoutError(f"every cache needs as many pages, got {counts}")
    caches = {key: _bind_cache(specs[key], tensor, plan) for key, tensor in tensors.items()}
    return Attention(plan, caches, next(iter(counts.values()), 0))


def _bind_cache(spec: CacheSpec, tensor: torch.Tensor, plan: Plan) -> KVCache:
    expected = torch.device(plan.device.torch_device or "meta").type
    if tensor.device.type != expected:
        raise LayoutError(f"the cache of {spec.key} is on {tensor.device}; the plan runs on {expected}")
    rows = tensor.shape[1] if tensor.dim() == 3 else spec.block_size
    return KVCache(tensor, spec.layout, spec.block_size, rows)


def _check_group(group: Any) -> None:
    if group is not None:
        raise NotBuiltError("decode context parallel groups are not written yet; leave group out")


def _open_backends(plan: Plan) -> dict[str, Backend]:
    names = {name for selection in plan.selections if selection is not None for name in selection.providers.values()}
    return {name: find_backend(name)(plan.device) for name in sorted(names)}


def _arithmetic(plan: Plan, opened: Mapping[str, Backend]) -> torch.dtype:
    """The type in which up-projections are applied: the plan's, or the wider one that every backend here computes in."""
    wider = {
        backend.capabilities.arithmetic.get(plan.dtype, plan.dtype)
        for backend in opened.values()
        if backend.capabilities is not None
    }
    name = wider.pop() if len(wider) == 1 else plan.dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _can_mask(opened: Mapping[str, Backend]) -> bool:
    return all(backend.capabilities is not None and backend.capabilities.masked_varlen for backend in opened.values())


def _prepare_out(out: torch.Tensor | None, q: torch.Tensor, width: int, metadata: StepMetadata) -> torch.Tensor:
    shape = (q.shape[0], q.shape[1], width)
    if out is None:
        out = q.new_empty(shape)
    elif tuple(out.shape) != shape or out.dtype != q.dtype:
        raise LayoutError(f"out is {out.dtype} {list(out.shape)}; this call writes {q.dtype} {list(shape)}")
    out[metadata.num_tokens :].zero_()
    return out
