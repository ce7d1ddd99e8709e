"""What a checkpoint would do to its model, and whether that is acceptable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from .errors import CheckpointError

SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Every tensor of the folder and every parameter of the model, accounted for from headers alone."""

    folder: Path
    assigned: Mapping[str, tuple[str, ...]]
    """Parameter -> the checkpoint keys it is made of; parameters cut from one tensor share its key."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Key -> why it is not a parameter: old mask buffers and buffers that are recomputed."""
    unused: Mapping[str, str] = field(default_factory=dict)
    """Key -> the part it belongs to, which the config says this model does not build."""
    missing: tuple[str, ...] = ()
    """Parameters that no key fills, after tying."""
    unexpected: tuple[str, ...] = ()
    mismatched: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> what is wrong with its tensors' shape, number or type; key -> the same where it is no parameter's."""
    collisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameter -> the keys that would all fill it."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> the one it shares storage with, as the config says."""
    index_only: tuple[str, ...] = ()
    header_only: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Key -> the name it is read under, where a prefix was inferred from the module tree."""
    warnings: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether loading would fill every parameter from exactly one place and leave nothing over."""
        return not (self.missing or self.unexpected or self.mismatched or self.collisions or self.index_only)

    def raise_if_bad(self, strict: bool = True) -> None:
        """CheckpointError listing all that is wrong; with strict=False missing and unexpected names are let through."""
        problems = [
            _listed("listed by the index but in no file", self.index_only),
            _listed("filled twice", [f"{name} by {' and '.join(keys)}" for name, keys in self.collisions.items()]),
            _listed("of another shape or type", [f"{name}: {what}" for name, what in self.mismatched.items()]),
        ]
        if strict:
            problems += [
                _listed("missing", [self._with_hint(name, self.unexpected) for name in self.missing]),
                _listed("unexpected", [self._with_hint(name, self.missing) for name in self.unexpected]),
            ]
        found = [problem for problem in problems if problem]
        if found:
            raise CheckpointError(f"{self.folder} does not fit its model. " + "; ".join(found))

    @staticmethod
    def _with_hint(name: str, others: tuple[str, ...]) -> str:
        near = get_close_matches(name, others[:2000], n=1, cutoff=0.8)
        return f"{name} (near {near[0]})" if near else name


def _listed(what: str, names: list[str] | tuple[str, ...]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:SHOWN])}{more}"
