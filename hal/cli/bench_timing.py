"""What `hal bench` asks and what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hal.config import LayerShape, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What the command line asks: a step of `requests` decodes at `context` tokens each, and one prefill of `prefill`."""

    config: Path
    device: str = ""
    context: int = 4096
    requests: int = 8
    prefill: int = 1024
    tp: int = 1
    dtype: str = "auto"
    kv_layout: str = "auto"
    backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTimes:
    """Layers alike, who serves them, and the seconds that one of them takes, by phase."""

    layer: LayerShape
    layer_ids: tuple[int, ...]
    backend: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The whole answer. build_seconds: making a step's metadata, once for all layers."""

    trial: Trial
    shape: ModelShape
    target: str
    dtype: str
    kinds: tuple[KindTimes, ...]
    build_seconds: Mapping[str, float]

    def total(self, phase: str) -> float:
        """Seconds of all measured layers of the model and of the step's metadata."""
        return self.build_seconds[phase] + sum(len(kind.layer_ids) * kind.seconds[phase] for kind in self.kinds)

    def tokens(self, phase: str) -> int:
        """New tokens of a step."""
        return self.trial.requests if phase == "decode" else self.trial.prefill
