"""A model's attention, opened: caches, builder and kernels behind two calls per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from hal.common.backends.registry import find_backend
from hal.common.contract.backend import Backend
from hal.common.contract.batch import Batch
from hal.common.contract.cache import CacheKey
from hal.common.contract.call_values import IndexInputs, KVCache
from hal.common.contract.compressor import Compressor
from hal.common.contract.device_batch import DeviceBatch
from hal.common.contract.environment import read_variable
from hal.common.contract.errors import BackendError, BatchError, InputError, LayoutError, NotBuiltError
from hal.common.contract.gradients import without_gradients
from hal.common.contract.layouts.scales import describe_wrong
from hal.common.contract.step import StepMetadata
from hal.common.stepping.builder import MetadataBuilder
from hal.common.stepping.findings import Finding
from hal.common.stepping.pages import PagePool

from .binding import Binding, BoundLayer
from .choice import TopkState
from .compressed_layer import CompressedInputs, CompressedLayer
from .compressed_rows import CompressedRows
from .latent import LatentInputs, MLAWeights
from .latent_layer import LatentChoice, LatentLayer
from .layer_kernels import LayerKernels
from .paged_layer import PagedInputs, PagedLayer
from .ranks import DCPGroup
from .warmup import WarmupMonitor

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan

Bound = TypeVar("Bound", PagedLayer, LatentLayer, CompressedLayer)


class Attention:
    """Attention over paged caches for every layer of a plan; made by plan.open or plan.bind.

    It computes no gradients: results are detached, with a warning where an input requires one.

    pools: which pages of the caches are in use, by cache group; the same pool for every group where page ids are the same.
    caches: a layer's KV by its id, every other part of it under (layer id, part).
    """

    def __init__(
        self,
        plan: Plan,
        opened: Mapping[str, Backend],
        caches: Mapping[CacheKey, KVCache],
        pools: tuple[PagePool, ...],
        ranks: DCPGroup | None = None,
    ) -> None:
        device = find_torch_device(plan)
        self.plan = plan
        self.pools = pools
        self.caches = dict(caches)
        self._weights: dict[int, MLAWeights] = {}
        self._device = torch.device(device)
        self._arithmetic = _arithmetic(plan, opened)
        can_mask = _can_mask(plan, opened)
        self._builder = MetadataBuilder(plan, pools, device, can_mask=can_mask)
        self._topk = TopkState(plan, device, ranks)
        self._binding = Binding(
            plan=plan,
            kernels={
                layer.layer_id: LayerKernels(selection.providers, opened)
                for layer, selection in zip(plan.shape.layers, plan.selections, strict=True)
                if selection is not None
            },
            device=self._device,
            topk=self._topk,
            rows=CompressedRows(plan.parallel),
            can_mask=can_mask,
            ranks=ranks,
        )
        self._layers: dict[int, BoundLayer] = self._binding.bind(self.caches, self._weights)
        self._warmup = WarmupMonitor(plan, opened)
        self._has_scales = self._unseen_scales = any(cache.scale is not None for cache in self.caches.values())
        self._wrong_scales = Finding(device)
        self._workspaces = [
            (backend, _make_workspaces(backend, plan, device))
            for backend in opened.values()
            if type(backend).prepare_step is not Backend.prepare_step
        ]

    def build(self, batch: Batch | DeviceBatch) -> StepMetadata:
        """The metadata of a step, in persistent buffers that the next build() overwrites; BatchError before any is."""
        return self._prepare(self._builder.build(batch))

    def build_for_capture(self, num_reqs: int, num_tokens: int) -> StepMetadata:
        """The metadata of a made-up step of this size, whose tokens are written nowhere."""
        return self._prepare(self._builder.build_for_capture(num_reqs, num_tokens))

    def _prepare(self, metadata: StepMetadata) -> StepMetadata:
        if self._unseen_scales or (self._has_scales and read_variable("HAL_DEBUG") == "1"):
            self._count_wrong_scales()
        for backend, buffers in self._workspaces:
            backend.prepare_step(metadata, buffers)
        return metadata

    @property
    def pages(self) -> PagePool:
        """The pool of all cache groups; InputError where each group has one of its own."""
        if len(set(map(id, self.pools))) > 1:
            sizes = ", ".join(str(pool.num_pages) for pool in self.pools)
            raise InputError(f"each cache group has a pool of its own ({sizes} pages); use pools[group]")
        return self.pools[0]

    @property
    def lost_tokens(self) -> int:
        """Tokens of device batches, so far, that were written nowhere.

        They have no page of the pool, an impossible length, a page that several requests hold, which is read-only, or the place
        of an earlier token of the step.

        Reading it waits for the device; HAL_DEBUG=1 makes build() raise BatchError instead of counting.
        """
        return self._builder.lost_tokens

    @property
    def lost_pages(self) -> int:
        """Ids in live columns of device block tables, so far, that were no page of the pool.

        A request that has one sees no key in that step, in any layer and on any backend: its rows are 0, whatever the page
        that a kernel would read instead holds. What it has a place for is written. Live are the columns that its new tokens
        may see: not those behind every window or before every chunk of the layers that read the table. As for lost_tokens.
        """
        return self._builder.lost_pages

    @property
    def lost_choices(self) -> int:
        """Ids handed over as topk, so far, at or past the number of keys that their token sees: nobody attends there.

        As for lost_tokens, but that HAL_DEBUG=1 makes the layer's call raise.
        """
        return int(self._topk.lost_choices)

    @property
    def nan_scores(self) -> int:
        """Tokens, so far, with a NaN among their index scores: such a key comes last. As for lost_choices."""
        return int(self._topk.nan_scores)

    @property
    def wrong_scales(self) -> int:
        """Scales of bound caches that were not finite and above 0 at the first step, which an engine may have filled by then.

        As for lost_tokens; with HAL_DEBUG=1 every step looks.
        """
        return int(self._wrong_scales)

    def warm_up(self) -> None:
        """Compile every launch of the plan's list; nothing to do where no launch compiles.

        The list is of caches as the plan describes them and of dense results: a bound cache whose start or rows are other
        multiples of 16 than those, or an out with gaps, compiles when it is first met and counts as a miss.
        """
        self._warmup.warm_up()

    @property
    def compile_misses(self) -> int:
        """Launches since warm_up() whose key its list did not have; HAL_STRICT_WARMUP=1 raises BackendError instead."""
        return self._warmup.misses

    @torch.no_grad()
    def bind_weights(self, layer_id: int, w_uk: torch.Tensor, w_uv: torch.Tensor) -> None:
        """Hand over an MLA layer's up-projections, once: w_uk [heads, nope, lora], w_uv [heads, v, lora], this rank's heads.

        They are kept as they are, or as a copy in the type the backend computes in. LayoutError for other shapes, for no floats
        and for those of another device.
        """
        layer = self._find(layer_id, LatentLayer, "mla")
        way, mla, heads = layer.way, layer.way.mla, layer.way.bound.num_heads
        way.bound.expect(heads).check_floats(
            w_uk=(w_uk, (mla.qk_nope_head_dim, mla.kv_lora_rank)), w_uv=(w_uv, (mla.v_head_dim, mla.kv_lora_rank))
        )
        weights = self._weights[layer_id] = MLAWeights(w_uk=w_uk.to(self._arithmetic), w_uv=w_uv.to(self._arithmetic))
        self._layers[layer_id] = replace(layer, way=replace(way, weights=weights))

    def set_scale(self, layer_id: int, scale: torch.Tensor) -> None:
        """Set the fp32 scales that live outside a layer's cache, of one of the shapes in its spec; LayoutError for others.

        They are finite and above 0, which is asked of the device. Rows that are in the cache already were written under the old
        ones. Scales of the shape there is are copied into place.
        """
        cache = self.caches.get(layer_id)
        if cache is None or cache.scale is None:
            raise LayoutError(f"layer {layer_id} has no cache with scales outside; plan.cache_specs() says which ones have")
        cache.layout.check_scale_form(scale)
        wrong = describe_wrong(scale)
        if wrong is not None:
            raise LayoutError(f"the scales of layer {layer_id} are {wrong}; expected finite numbers above 0")
        if scale.shape == cache.scale.shape:
            cache.scale.copy_(scale)
            return
        self.caches[layer_id] = replace(cache, scale=scale.to(cache.storage.device))
        self._layers = self._binding.bind(self.caches, self._weights)

    @without_gradients
    def attend(
        self,
        layer_id: int,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        metadata: StepMetadata,
        sink: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        *,
        written: bool = False,
    ) -> torch.Tensor:
        """Write k, v [tokens, kv_heads, width] to the cache and attend: q [tokens, heads, head_dim] gives out [tokens, heads, v].

        k and v are None on a layer that reads another layer's KV, and where the engine has written this step's keys and values
        to the cache already, at the metadata's slots: written. Rows of padded tokens come back as zeros.

        With a DCP group every rank gives the same tokens' k and v, of the KV heads that all ranks of the group keep, writes
        those it owns, and gives the queries of its own heads: the ranks' queries are gathered, each attends to what it
        stores, and the results for this rank's heads are merged by LSE, the sink applied once after. Ranks of one tp_rank
        have the same heads, so each gives all of them and nothing is gathered.
        """
        layer = self._find(layer_id, PagedLayer, "attention")
        self._check_step(metadata)
        inputs = PagedInputs(q, k, v, sink, written)
        layer.check(metadata, inputs, out)
        layer.write(inputs, metadata)
        out = _prepare_out(out, q, layer.out_shape[1], metadata)
        layer.attend(inputs, metadata, out)
        return out

    @without_gradients
    def attend_mla(
        self,
        layer_id: int,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor | None,
        k_rope: torch.Tensor | None,
        metadata: StepMetadata,
        *,
        index: IndexInputs | None = None,
        topk: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        written: bool = False,
    ) -> torch.Tensor:
        """Write latent [tokens, lora] and k_rope [tokens, rope] and attend: out [tokens, heads, v_head_dim].

        q_nope [tokens, heads, nope], or [tokens, heads, lora] already absorbed, with out [tokens, heads, lora]. index: on a
        layer that owns an indexer; a layer that shares one uses the owner's choice of this step. topk int32 [tokens, width]
        overrides both; it is a set of ids per token, -1 for none, and one that occurs twice counts once. written: the engine
        has written this step's latents to the cache already, and latent and k_rope are None: where keys are made of them they
        are read back, as a quantised cache has rounded them. Index keys are still hal's to write.

        With a DCP group every rank gives the same latents, index inputs and topk (whole requests' positions) and the queries
        of its own heads, as in attend. Latents of other ranks' tokens are never here, so the form is always the absorbed one.
        """
        layer = self._find(layer_id, LatentLayer, "mla")
        self._check_step(metadata)
        inputs = LatentInputs(q_nope, q_rope, latent, k_rope)
        choice = LatentChoice(index=index, topk=topk)
        layer.check(metadata, inputs, choice, sink, out, is_written=written)
        layer.write(inputs, choice, metadata)
        out = _prepare_out(out, q_nope, layer.out_width(q_nope), metadata)
        layer.attend(inputs, metadata, sink, out)
        return out

    @without_gradients
    def attend_compressed(
        self,
        layer_id: int,
        q: torch.Tensor,
        kv: torch.Tensor | None,
        compressor: Compressor | None,
        metadata: StepMetadata,
        *,
        index: IndexInputs | None = None,
        sink: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write kv [tokens, head_dim], key and value alike, compress, and attend: q [tokens, heads, head_dim] gives out like q.

        Each token attends to its window and to the closed entries behind it, those that an indexer picks where the layer
        has one. compressor: on a layer that makes entries, None on one that keeps its window alone or reads another's.
        index: on a layer that owns an indexer, whose k may be a compressor too. kv is None on a layer that reads another's.

        A page keeps what compressors remember of its last tokens: a request may lose as many as num_spec_tokens of the plan
        and go on; one that falls back further goes on from the end of a page.
        """
        layer = self._find(layer_id, CompressedLayer, "compressed")
        self._check_step(metadata)
        inputs = CompressedInputs(q=q, kv=kv, compressor=compressor, index=index)
        layer.check(metadata, inputs, sink, out)
        layer.write(inputs, metadata)
        out = _prepare_out(out, q, q.shape[2], metadata)
        layer.attend(q, metadata, sink, out)
        return out

    def _count_wrong_scales(self) -> None:
        self._unseen_scales = False
        for key, cache in self.caches.items():
            if cache.scale is not None:
                is_wrong = ~(cache.scale.isfinite() & (cache.scale > 0))
                self._wrong_scales.add(is_wrong, partial(_describe_wrong_scale, key))

    def _find(self, layer_id: int, kind: type[Bound], name: str) -> Bound:
        """The bound layer, which is of a kind by that name; BatchError where it is of another."""
        # A float that equals an id finds its layer, too.
        found = self._layers.get(layer_id) if hasattr(layer_id, "__index__") else None
        if isinstance(found, kind):
            return found
        layer = self.plan.shape.layer(layer_id)
        if layer.kind != name:
            raise BatchError(f"layer {layer_id} is of kind {layer.kind!r}, this call serves {name!r}")
        raise NotBuiltError(f"layer {layer_id} is a draft layer, and attending on those is not written yet")

    def _check_step(self, metadata: StepMetadata) -> None:
        if not isinstance(metadata, StepMetadata):
            raise BatchError(f"metadata is a {type(metadata).__name__}; expected what build() returned")
        if metadata.owner is not self._builder:
            raise BatchError("this metadata was built by another Attention, whose pages and caches are not these")
        if metadata.step_id != self._builder.step_id:
            raise BatchError(
                f"this metadata is of step {metadata.step_id} and its buffers now hold step {self._builder.step_id}; "
                "use what the latest build() returned"
            )


def _describe_wrong_scale(key: CacheKey, _: tuple[int, ...]) -> str:
    return f"the scales of the cache of {key} hold what no value can be divided by; expected finite numbers above 0"


def find_torch_device(plan: Plan) -> str:
    """Where the plan's tensors live; BackendError where nothing can run on its device here."""
    if plan.device.torch_device is None:
        raise BackendError(f"{plan.device.target} is not on this machine: nothing can run there; plan for it, or open elsewhere")
    return plan.device.torch_device


def open_backends(plan: Plan) -> dict[str, Backend]:
    """The backends that provide any call of the plan, made for its device; BackendError, chained, where one does not load."""
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


def _can_mask(plan: Plan, opened: Mapping[str, Backend]) -> bool:
    """Whether every provider of prefills over contiguous keys takes an explicit choice of them."""
    names = {selection.providers.get("varlen_attention.prefill") for selection in plan.selections if selection is not None}
    declared = [opened[name].capabilities for name in names if name is not None]
    return bool(declared) and all(capabilities is not None and capabilities.masked_varlen for capabilities in declared)


def _make_workspaces(backend: Backend, plan: Plan, device: str) -> dict[str, torch.Tensor]:
    return {
        buffer.name: torch.zeros(buffer.shape, dtype=getattr(torch, buffer.dtype), device=device)
        for buffer in backend.list_workspaces(plan.limits)
    }


def _prepare_out(out: torch.Tensor | None, q: torch.Tensor, width: int, metadata: StepMetadata) -> torch.Tensor:
    if out is None:
        out = q.new_empty((q.shape[0], q.shape[1], width))
    if metadata.num_tokens < q.shape[0]:
        out[metadata.num_tokens :].zero_()
    return out
