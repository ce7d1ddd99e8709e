"""A few tokens through the whole model without attention: finds its modules and holds each to its layer's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from hal.config import LayerShape, ModelShape

from .binding import CompressedBinding, DenseBinding, LatentBinding, Step
from .checks import check_first_call
from .compressor import tap_compressor
from .decoders import find_decoder
from .errors import NEXT_STEP, UnsupportedModelError
from .far import check_positions, draw_far_samples
from .indexer import tap_indexer
from .interface import BINDING, AttentionCall, Binding
from .latent import patch_expand, split_up_projection
from .ranks import shared
from .tokenwise import ProbeRun, Sample, check_tokenwise, draw_samples, name_rows, run_sample
from .weightless import weightless


@dataclass(frozen=True, slots=True)
class ProbeBinding:
    """Checks the call of one module, notes it, and answers with zeros."""

    layer: LayerShape
    step: Step
    run: ProbeRun

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """See interface.Binding."""
        layer = self.layer
        check_first_call(layer, module, call)
        if layer.layer_id in self.run.modules:
            raise UnsupportedModelError(
                f"layer {layer.layer_id} ({type(module).__name__}) attends twice in one step; {NEXT_STEP}"
            )
        _check_widths(layer, module, query, key, value)
        owns_index = layer.indexer is not None and layer.indexer.owns
        index, compressor = self.step.take_index(), self.step.take_compressor()
        for what, ran, owned in (
            ("an indexer", index is not None, owns_index),
            ("a compressor", compressor is not None, layer.owns_entries),
        ):
            if ran != owned:
                raise UnsupportedModelError(
                    f"layer {layer.layer_id} ({type(module).__name__}) {'did not run' if owned else 'ran'} {what}, "
                    f"but its config gives it {'one' if owned else 'none'} of its own; {NEXT_STEP}"
                )
        self.run.modules[layer.layer_id] = module
        self.run.products[layer.layer_id] = name_rows(query, key, value, index, compressor)
        return query.new_zeros((1, query.shape[2], query.shape[1], layer.v_head_dim))


def bind_modules(
    module: PreTrainedModel, shape: ModelShape, step: Step, max_model_len: int | None = None
) -> dict[int, torch.nn.Module]:
    """Patch and bind every attention module of the text decoder; returns them by layer id.

    Modules are found by structure: a layer_idx, and a call of the attention function. The module is changed, its class is
    not. UnsupportedModelError for a layer that never calls it or calls it with values that its shape does not hold, and for
    a model in which anything else passes from token to token, or whose positions up to max_model_len are not those it is given.
    """
    decoder = find_decoder(module)
    candidates: list[Any] = [child for child in decoder.modules() if isinstance(getattr(child, "layer_idx", None), int)]
    candidates = [child for child in candidates if 0 <= child.layer_idx < shape.num_layers]
    for child in candidates:
        _patch(child, shape.layer(child.layer_idx), step)
    first, second = draw_samples(module, shape)
    with weightless(module):
        in_order = _run(module, shape, step, candidates, first)
        check_tokenwise(module, in_order, _run(module, shape, step, candidates, second))
        if max_model_len is not None:
            far, behind = draw_far_samples(first, max_model_len)
            plain = _run(module, shape, step, candidates, far)
            cached = _run_behind_cache(module, shape, step, candidates, behind)
            if cached is not None:
                check_positions(module, plain, cached, max_model_len)
    for child in candidates:
        child.__dict__.pop(BINDING, None)
    for layer_id, child in in_order.modules.items():
        setattr(child, BINDING, shared(child, _bind(shape.layer(layer_id), step)))
    return in_order.modules


def _run(module: PreTrainedModel, shape: ModelShape, step: Step, candidates: Sequence[Any], sample: Sample) -> ProbeRun:
    run = ProbeRun()
    for child in candidates:
        setattr(child, BINDING, shared(child, ProbeBinding(shape.layer(child.layer_idx), step, run)))
    run.logits = run_sample(module, shape, sample)
    silent = [layer.layer_id for layer in shape.layers if layer.layer_id not in run.modules]
    if silent:
        classes = sorted({type(child).__name__ for child in candidates if child.layer_idx in silent})
        raise UnsupportedModelError(
            f"{type(module).__name__}: layers {silent} never called the attention function "
            f"(modules with their layer_idx: {', '.join(classes) or 'none'}); {NEXT_STEP}"
        )
    return run


def _run_behind_cache(
    module: PreTrainedModel, shape: ModelShape, step: Step, candidates: Sequence[Any], sample: Sample
) -> ProbeRun | None:
    """None for a model that runs only with a cache of its own kind: it has no length of this one to count from."""
    try:
        return _run(module, shape, step, candidates, sample)
    except UnsupportedModelError:
        return None


def up_projections(modules: dict[int, torch.nn.Module], shape: ModelShape) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """w_uk and w_uv of every MLA layer, as views of the modules' weights."""
    return {
        layer_id: split_up_projection(module, shape.layer(layer_id), mla)
        for layer_id, module in modules.items()
        if (mla := shape.layer(layer_id).mla) is not None
    }


def _patch(child: torch.nn.Module, layer: LayerShape, step: Step) -> None:
    expands = hasattr(child, "expand_kv")
    if expands and layer.mla is not None:
        patch_expand(child)
    compressor = getattr(child, "compressor", None)
    if isinstance(compressor, torch.nn.Module) and layer.owns_entries:
        tap_compressor(compressor, layer, step)
    indexer = getattr(child, "indexer", None)
    if isinstance(indexer, torch.nn.Module) and layer.indexer is not None:
        tap_indexer(indexer, layer, layer.indexer, step)


def _bind(layer: LayerShape, step: Step) -> Binding:
    if layer.kind == "compressed":
        return CompressedBinding(layer, step)
    return DenseBinding(layer, step) if layer.mla is None else LatentBinding(layer, layer.mla, step)


def _check_widths(
    layer: LayerShape, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    if layer.mla is None:
        wanted = (layer.num_kv_heads, layer.head_dim, layer.num_kv_heads, layer.v_head_dim)
    else:
        wanted = (1, layer.mla.kv_lora_rank, 1, layer.mla.qk_rope_head_dim)
    found = (key.shape[1], key.shape[-1], value.shape[1], value.shape[-1])
    if (query.shape[1], query.shape[-1]) != (layer.num_heads, layer.head_dim) or found != wanted:
        raise UnsupportedModelError(
            f"layer {layer.layer_id} ({type(module).__name__}) attends with queries {list(query.shape)}, keys "
            f"{list(key.shape)}, values {list(value.shape)}; its config describes {layer.num_heads} heads of "
            f"{layer.head_dim}, and keys and values as (heads, width) {wanted[:2]} and {wanted[2:]}; {NEXT_STEP}"
        )
