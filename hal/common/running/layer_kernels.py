"""The calls of one layer, each from the backend that provides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hal.common.contract.backend import PHASES, Backend
from hal.common.contract.errors import BackendError

if TYPE_CHECKING:
    import torch


class _CallTable(Backend):
    """Calls of several backends under their names; one that nobody provides is not implemented."""

    def __init__(self, providers: Mapping[str, Backend]) -> None:
        for call, backend in providers.items():
            setattr(self, call, getattr(backend, call))


class LayerKernels:
    """calls: those that are the same in both phases. phases: those of a phase by its name, "decode" or "prefill"."""

    def __init__(self, providers: Mapping[str, str], opened: Mapping[str, Backend]) -> None:
        split = {tuple(key.split(".")): opened[name] for key, name in providers.items()}
        common = {key[0]: backend for key, backend in split.items() if len(key) == 1}
        self.calls: Backend = _CallTable(common)
        self.phases: Mapping[str, Backend] = {
            phase: _CallTable({key[0]: backend for key, backend in split.items() if key[1:] == (phase,)}) for phase in PHASES
        }
        self._common = frozenset(common)
        self._ranged = frozenset(
            key[0] for key, backend in split.items() if backend.capabilities is not None and backend.capabilities.key_ranges
        )

    def provides(self, call: str) -> bool:
        """Whether any backend serves a call that the layer can do without."""
        return call in self._common

    def reads_key_ranges(self, call: str) -> bool:
        """Whether the provider of a call honours the key ranges of a PagedBatch."""
        return call in self._ranged


def require_lse(lse: torch.Tensor | None) -> torch.Tensor:
    """The LSE that a call was asked for; BackendError where its kernel gave none."""
    if lse is None:
        raise BackendError("a kernel was asked for the LSE of its results and gave none; results cannot be merged without it")
    return lse
