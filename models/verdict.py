"""What a checkpoint would do to its model, and whether that is acceptable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from .errors import CheckpointError, listed
from .quantisation import StoredFormat


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
    """Names that the index lists and the file it gives for them does not hold."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Of the index_only names, the listed file that holds them instead."""
    header_only: tuple[str, ...] = ()
    """Names that lie in a listed file and not in the index; they are not read."""
    extra_files: tuple[str, ...] = ()
    """Safetensors files of the folder that are not read."""
    stored_format: StoredFormat | None = None
    """The quantised format that the weights are stored in and that cannot be loaded; None for plain numbers."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Key -> the name it is read under, where a prefix was inferred from the module tree."""
    warnings: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether loading would fill every parameter from exactly one place and leave nothing over."""
        bad = (self.missing, self.unexpected, self.mismatched, self.collisions, self.index_only, self.stored_format)
        return not any(bad)

    def raise_if_bad(self, strict: bool = True) -> None:
        """CheckpointError listing all that is wrong; with strict=False missing and unexpected names are let through."""
        problems = [
            f"Its weights are stored as {self.stored_format}; only unquantised checkpoints can be loaded"
            if self.stored_format
            else "",
            _listed("listed by the index but in no file", [self._with_place(name) for name in self.index_only]),
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

    def _with_place(self, name: str) -> str:
        return f"{name} (it lies in {self.elsewhere[name]} instead)" if name in self.elsewhere else name

    @staticmethod
    def _with_hint(name: str, others: tuple[str, ...]) -> str:
        near = get_close_matches(name, others[:2000], n=1, cutoff=0.8)
        return f"{name} (near {near[0]})" if near else name


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}: {listed(names)}" if names else ""
