"""The calls of one layer, each from the backend that provides it."""

from __future__ import annotations

from collections.abc import Mapping

from hal.common.contract.backend import PHASES, Backend
from hal.common.contract.sinks import require_lse, take_sinks

__all__ = ["LayerKernels", "require_lse"]


class _CallTable(Backend):
    """Calls of several backends under their names; one that nobody provides is not implemented.

    sinks: whose apply_sink is used where a call's own backend does not take its sink.
    """

    def __init__(self, providers: Mapping[str, Backend], sinks: Backend | None = None) -> None:
        for call, backend in providers.items():
            setattr(self, call, take_sinks(backend, call, (sinks or self).apply_sink))


class LayerKernels:
    """calls: those that are the same in both phases. phases: those of a phase by its name, "decode" or "prefill"."""

    def __init__(self, providers: Mapping[str, str], opened: Mapping[str, Backend]) -> None:
        split = {tuple(key.split(".")): opened[name] for key, name in providers.items()}
        common = {key[0]: backend for key, backend in split.items() if len(key) == 1}
        self.calls: Backend = _CallTable(common)
        self.phases: Mapping[str, Backend] = {
            phase: _CallTable({key[0]: backend for key, backend in split.items() if key[1:] == (phase,)}, self.calls)
            for phase in PHASES
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
