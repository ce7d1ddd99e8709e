"""transformers' own continuous batching on hal attention: its scheduler and its paged cache, hal's call over what it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from hal.common.backends.kernels import kernels
from hal.common.backends.select import select
from hal.common.contract.backend import Backend
from hal.common.contract.call_values import VarlenBatch
from hal.common.contract.masking import Masking
from hal.common.contract.request import Request
from hal.config import LayerShape, ModelShape
from hal.config.dtypes import dtype_name

from .binding import Step, by_token
from .checks import check_call, scaled_query
from .decoders import find_decoder
from .errors import UnsupportedModelError
from .interface import BINDING, NAME, AttentionCall, attention_forward, make_mask, register
from .placing import device_of
from .probe import bind_modules
from .support import check_supported, read_module
from .undo import undone_on_error

CONTINUOUS_NAME = "hal_flash"
"""transformers hands lengths instead of masks to an implementation whose name has "flash" in it, and to no other."""

PAGING = frozenset(
    {
        "block_table",
        "cache",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "logits_indices",
        "logits_processor_args",
        "max_length_k",
        "max_length_q",
        "read_index",
        "write_index",
    }
)
"""Keywords that describe a step of continuous batching, as transformers.generation.continuous_batching names them."""


@dataclass(frozen=True, slots=True)
class ContinuousBinding:
    """Serves one layer from transformers' paged cache."""

    layer: LayerShape
    calls: Backend

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """See interface.Binding."""
        paging = {name: given for name, given in call.keywords.items() if name in PAGING}
        own = {name: given for name, given in call.keywords.items() if name not in PAGING}
        sink = check_call(self.layer, module, AttentionCall(call.mask, call.scaling, call.dropout, own))
        cache = self._check_paging(module, paging)
        # The cache writes the new tokens, gives every request's keys end to end, and leaves the layer's own lengths in `paging`.
        key, value = cache.update(key_states=key, value_states=value, layer_idx=self.layer.layer_id, kwargs=paging)
        out, lse = self.calls.varlen_attention(
            by_token(scaled_query(self.layer, query, call)),
            by_token(key),
            by_token(value),
            VarlenBatch(
                q_start_loc=paging["cu_seq_lens_q"],
                k_start_loc=paging["cu_seq_lens_k"],
                max_query_len=paging["max_length_q"],
                max_seq_len=paging["max_length_k"],
            ),
            softmax_scale=self.layer.softmax_scale,
            masking=Masking(window=self.layer.window, softcap=self.layer.softcap),
            need_lse=sink is not None,
        )
        if sink is not None and lse is not None:
            out = self.calls.apply_sink(out, lse, sink)
        return out.unsqueeze(0)

    def _check_paging(self, module: torch.nn.Module, paging: dict[str, Any]) -> Any:
        if paging.get("cache") is None:
            raise UnsupportedModelError(
                f"{type(module).__name__} was prepared for generate_batch(), which brings the cache; to generate in other "
                "ways use hal.models.attach()"
            )
        if paging.get("block_table") is not None:
            raise UnsupportedModelError(
                "generate_batch() asks for attention by block table, whose pages hold keys and values apart; hal serves its "
                "other path: pass ContinuousBatchingConfig(max_blocks_per_request=0)"
            )
        return paging["cache"]


def enable_generate_batch(module: PreTrainedModel, *, backend: str | None = None) -> PreTrainedModel:
    """The module itself; its generate_batch() now runs hal's varlen_attention over transformers' paged cache.

    backend: by name, or the one selected for the module's device. The module is changed (deepcopy it to keep a plain one)
    and generates in no other way. UnsupportedModelError or NoBackend, before anything is changed, for what cannot run so.
    """
    shape = read_module(module)
    check_supported(module, shape)
    for layer in shape.layers:
        _check_layer(module, layer)
    if any(BINDING in child.__dict__ for child in module.modules()):
        raise UnsupportedModelError(f"this {type(module).__name__} already runs on hal attention")
    calls = _find_calls(module, shape, backend)
    register()
    AttentionInterface.register(CONTINUOUS_NAME, attention_forward)
    AttentionMaskInterface.register(CONTINUOUS_NAME, make_mask)
    with undone_on_error(module):
        module.eval()
        find_decoder(module).set_attn_implementation(NAME)
        for layer_id, child in bind_modules(module, shape, Step()).items():
            setattr(child, BINDING, ContinuousBinding(shape.layer(layer_id), calls))
    # Not by set_attn_implementation: for a name with "flash" in it, that looks for a package or a kernel to download.
    module.config._attn_implementation = CONTINUOUS_NAME
    return module


def _check_layer(module: PreTrainedModel, layer: LayerShape) -> None:
    """Raise UnsupportedModelError for a layer that transformers' paged cache or one varlen call cannot hold."""
    reasons = {
        f"it is of kind {layer.kind}, and that cache holds keys and values per head": layer.kind != "attention",
        f"its keys are {layer.head_dim} wide and its values {layer.v_head_dim}": layer.head_dim != layer.v_head_dim,
        f"it attends in chunks of {layer.chunk}": layer.chunk is not None,
        f"it reads the keys of layer {layer.kv_source}": not layer.owns_kv,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(
                f"{type(module).__name__}, layer {layer.layer_id}: {reason}; generate_batch() cannot serve it on hal attention, "
                "hal.models.attach() may"
            )


def _find_calls(module: PreTrainedModel, shape: ModelShape, backend: str | None) -> Backend:
    device = device_of(module)
    dtype = dtype_name(module.dtype)
    names = {select(Request(layer, device, dtype), backend=backend).backend for layer in shape.layers}
    if len(names) > 1:
        raise UnsupportedModelError(f"the layers are served by {', '.join(sorted(names))}; name one of them as backend")
    calls = kernels(names.pop(), device)
    if type(calls).varlen_attention is Backend.varlen_attention:
        raise UnsupportedModelError(f"{calls.name} has no varlen_attention, which generate_batch() needs")
    return calls
