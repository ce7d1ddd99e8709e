"""Checkpoints that are headers only: a plan needs no more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from hal.config import read_shape
from hal.models import CheckpointPlan
from hal.models.build import build_module
from hal.models.checkpoint_header import DTYPES, StoredTensor
from hal.models.checkpoint_index import CheckpointIndex
from hal.models.checkpoint_plan import plan_tensors

NAMES = {dtype: name for name, dtype in DTYPES.items()}
Extras = Mapping[str, tuple[str, tuple[int, ...]]]


def stored(name: str, dtype: str, shape: tuple[int, ...]) -> StoredTensor:
    """One tensor of a file that is not there."""
    return StoredTensor(name=name, file=Path("model.safetensors"), dtype=dtype, shape=shape)


def plan_with(config: PreTrainedConfig, extras: Extras | None = None, without: tuple[str, ...] = ()) -> CheckpointPlan:
    """The plan for a model's own tensors, less those whose name starts with one of `without`, and `extras`: (dtype, shape)."""
    module = build_module(config, torch.float32)
    tensors = {
        name: stored(name, NAMES[tensor.dtype], tuple(tensor.shape))
        for name, tensor in module.state_dict().items()
        if not name.startswith(without) or not without
    }
    tensors |= {name: stored(name, dtype, shape) for name, (dtype, shape) in (extras or {}).items()}
    return plan_tensors(CheckpointIndex(folder=Path("folder"), tensors=tensors), module, read_shape(config))
