"""What `hal explain` is asked and what it answers, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hal.common.contract.device import Device
from hal.common.contract.limits import Limits
from hal.common.contract.parallel import Parallel
from hal.common.contract.plan import Plan
from hal.common.contract.reason import Reason
from hal.common.contract.selection import Selection
from hal.common.contract.software import Software
from hal.config import LayerShape, ModelShape
from hal.matrix.proof import Proof

from .weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the command line asks; memory_gb is one rank's, in units of 10^9 bytes. weights: "auto", a size, or "" for none."""

    config: Path
    targets: tuple[str, ...] = ()
    tp: int = 1
    dcp: int = 1
    dtype: str = "auto"
    kv_layout: str = "auto"
    block_size: int | None = None
    backend: str | None = None
    memory_gb: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    software: tuple[str, ...] = ()
    weights: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnswer:
    """Layers alike on one device. selection is None where nobody serves them; rejected has every refusal either way.

    also_able: backends that would serve them and were not chosen. proof: how far the chosen calls are proved.
    """

    layer: LayerShape
    layer_ids: tuple[int, ...]
    family: str
    selection: Selection | None
    rejected: Mapping[str, tuple[Reason, ...]]
    also_able: tuple[str, ...] = ()
    proof: Proof | None = None
    is_draft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Tokens that fit in a memory beside the weights and the plan's workspace, or in all of it where those are not known.

    one_request: the longest that one request could be; each_request: that num_seqs could all be; neither more than
    max_model_len, which is_bound says of the first. pool_tokens: what the plan's pools hold over all requests, None without a
    plan; group_pool_tokens: the same with a pool for each cache group, whose pages windows give back; None where no layer has
    a window. taken_bytes: what the weights and the workspace leave to no cache.
    """

    memory_bytes: int
    taken_bytes: int
    num_seqs: int
    max_model_len: int
    one_request: int
    each_request: int
    pool_tokens: int | None
    group_pool_tokens: int | None

    @property
    def is_bound(self) -> bool:
        """Whether the longest request is as long as was asked for, rather than as memory lets it be."""
        return self.one_request == self.max_model_len

    @property
    def is_nothing(self) -> bool:
        """Whether the weights and the workspace, where they are known, leave no room for a token."""
        return self.taken_bytes >= self.memory_bytes or not self.one_request


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAnswer:
    """One device; sizes are one rank's. plan is None, with `refusal` saying why, where some layer has no backend.

    layers: those of the decoder, then the draft ones, which are in no size and no plan. software: what the answer takes to be
    installed, None for every library. capacity is None without a memory size.
    """

    device: Device
    software: Software | None
    layers: tuple[LayerAnswer, ...]
    plan: Plan | None
    refusal: str
    kv_bytes_per_token: int
    index_bytes_per_token: int
    capacity: Capacity | None

    @property
    def is_served(self) -> bool:
        """Whether every layer of the decoder has a backend."""
        return self.plan is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The whole answer and the terms it holds under."""

    shape: ModelShape
    dtype: str
    kv_layout: str
    backend: str | None
    limits: Limits
    parallel: Parallel
    software: Software | None
    weights: Weights | None
    devices: tuple[DeviceAnswer, ...]

    @property
    def is_served(self) -> bool:
        """Whether some device that was asked for serves the model."""
        return any(found.is_served for found in self.devices)
