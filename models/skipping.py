"""Checkpoint tensors that are known not to be parameters: old mask buffers, recomputed buffers, parts not built."""

from __future__ import annotations

import re

import torch
from transformers import PreTrainedModel

from hal.config import ModelShape

from .checkpoint_index import StoredTensor

MASK_BUFFERS = frozenset({"bias", "masked_bias", "causal_mask"})
"""Last components under which old transformers releases saved attention masks and their fill value."""


def explain_skip(tensor: StoredTensor, module: PreTrainedModel) -> str | None:
    """Why a tensor that resolves to no parameter may be left out, None if it may not.

    Exact name and shape only: a mask buffer's last component with the shape of a mask or scalar, or the name and shape
    of a buffer that the module recomputes.
    """
    last = tensor.name.rpartition(".")[2]
    if last in MASK_BUFFERS and (_is_scalar(tensor.shape) or _is_mask(tensor.shape)):
        return f"old mask buffer {list(tensor.shape)}"
    for name, buffer in _recomputed_buffers(module):
        if name.rpartition(".")[2] == last and tuple(buffer.shape) == tensor.shape:
            return f"buffer that the module computes itself ({name})"
    return None


def explain_unused(key: str, shape: ModelShape, module: PreTrainedModel) -> str | None:
    """Why a key belongs to a part of the model that is not built: a draft layer, or an indexer of a layer that shares one."""
    match = re.match(r"(.*?)\.(\d{1,9})\.", key)
    if match is None or not _is_decoder_list(match.group(1), shape.num_layers, module):
        return None
    number = int(match.group(2))
    if shape.num_layers <= number < shape.num_layers + len(shape.draft_layers):
        return f"draft layer {number}"
    if number < shape.num_layers and ".indexer." in key:
        indexer = shape.layer(number).indexer
        if indexer is not None and not indexer.owns:
            return f"layer {number} reuses an earlier layer's index"
    return None


def _is_decoder_list(path: str, num_layers: int, module: PreTrainedModel) -> bool:
    lists = {name: child for name, child in module.named_modules() if isinstance(child, torch.nn.ModuleList)}
    child = lists.get(path, lists.get(f"{module.base_model_prefix}.{path}"))
    return child is not None and len(child) == num_layers


def _is_scalar(shape: tuple[int, ...]) -> bool:
    return shape in ((), (1,))


def _is_mask(shape: tuple[int, ...]) -> bool:
    return len(shape) >= 2 and shape[-1] == shape[-2] and all(size == 1 for size in shape[:-2])


def _recomputed_buffers(module: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    persistent = module.state_dict().keys()
    return [(name, buffer) for name, buffer in module.named_buffers() if name not in persistent]
