"""hal explain: for each device who serves a model's layers, why the others do not, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import hal
from hal.common.reason import Reason
from hal.common.registry import find_backend
from hal.config import LayerShape, ModelShape, read_shape
from hal.config.dtypes import dtype_name

from .console import InputError, make_console, print_json
from .words import group_alike, say_ids, say_layer, say_model

DEFAULT_DTYPE = "bfloat16"
DEFAULT_LENGTH = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the command line asks; memory_gb is per rank, in units of 10^9 bytes."""

    config: Path
    targets: tuple[str, ...] = ()
    tp: int = 1
    dtype: str = "auto"
    kv_layout: str = "auto"
    block_size: int | None = None
    backend: str | None = None
    memory_gb: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnswer:
    """Layers alike on one device: who serves them, in which layout; backend None where nobody does."""

    layers: str
    count: int
    what: str
    family: str
    backend: str | None
    source: str | None
    kv_layout: str | None
    block_size: int | None
    kv_bytes_per_token: int
    index_bytes_per_token: int
    rejected: Mapping[str, tuple[Reason, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAnswer:
    """Everything about one device; sizes are one rank's. workspace_bytes None where nothing serves the model there."""

    target: str
    name: str
    present: bool
    served: bool
    layers: tuple[LayerAnswer, ...]
    kv_bytes_per_token: int
    index_bytes_per_token: int
    memory_bytes: int | None
    max_tokens: int | None
    workspace_bytes: int | None
    refusal: str | None
