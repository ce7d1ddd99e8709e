"""What a checkpoint would do to its model, and whether that is acceptable."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import CheckpointError, listed
from .nearest import Neighbours
from .quantisation import StoredFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Every tensor of the folder and every parameter of the model, accounted for from headers alone."""

    folder: Path
    assigned: Mapping[str, tuple[str, ...]]
    """Parameter -> the checkpoint keys it is made of; parameters cut from one tensor share its key."""
    conversions: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> what is done to its tensors, step by step, where they are not copied as they are."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Key -> the type it is stored in, as safetensors spells it ("BF16")."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Key -> why it is not a parameter: old mask buffers and buffers that are recomputed."""
    unused: Mapping[str, str] = field(default_factory=dict)
    """Key -> the part it belongs to, which this model does not build."""
    missing: tuple[str, ...] = ()
    """Parameters that no key fills, after tying."""
    unstored: Mapping[str, str] = field(default_factory=dict)
    """Parameter that no key fills -> why it need not be: its class lets files leave it out and computes it."""
    unexpected: tuple[str, ...] = ()
    """Keys that no parameter takes and no rule explains."""
    nearest: Mapping[str, str] = field(default_factory=dict)
    """Unexpected or missing name -> the name on the other side that it was most likely meant to be."""
    mismatched: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> what is wrong with its tensors' shape, number or type; key -> the same where it is no parameter's."""
    collisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameter -> the keys that would all fill it."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> the one it shares storage with."""
    tied_because: Mapping[str, str] = field(default_factory=dict)
    """Tied parameter -> what says so."""
    bytes_per_rank: tuple[int, ...] = ()
    """Bytes that each tensor-parallel rank reads of the files; one number for one rank."""
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
        found = self.problems(strict)
        if found:
            raise CheckpointError(f"{self.folder} does not fit its model. " + self._say_stranger() + "; ".join(found))

    def problems(self, strict: bool = True) -> tuple[str, ...]:
        """What is wrong, a sentence for each kind; () where nothing is."""
        quantised = f"Its weights are stored as {self.stored_format}; only unquantised checkpoints can be loaded"
        found = [
            quantised if self.stored_format is not None else "",
            _listed("listed by the index but in no file", [self._with_place(name) for name in self.index_only]),
            _listed("filled twice", [f"{name} by {' and '.join(keys)}" for name, keys in self.collisions.items()]),
            _listed("of another shape or type", [f"{name}: {what}" for name, what in self.mismatched.items()]),
        ]
        if strict:
            found += [
                _listed("missing", [self._with_hint(name) for name in self.missing]),
                _listed("unexpected", [self._with_hint(name) for name in self.unexpected]),
            ]
        if strict and self.missing:
            ties = (words for words in self.warnings if "tie_word_embeddings" in words)
            found += [f"{words}: set both flags alike if the embedding is the head as well" for words in ties]
        return tuple(problem for problem in found if problem)

    def _say_stranger(self) -> str:
        """A first word on a checkpoint that has next to nothing in common with the model its config describes."""
        adapted = [name for name in self.unexpected if any(part.startswith("lora_") for part in name.split("."))]
        if 2 * len(adapted) > len(self.unexpected):
            return "It holds an adapter's tensors; merge it into its base model and save that. "
        wrong = len(self.missing) + len(self.mismatched)
        if 2 * wrong <= len(self.assigned) + len(self.missing):
            return ""
        return (
            f"{wrong} of {len(self.assigned) + len(self.missing)} parameters are not in it as they should be: config.json and "
            "the weights are most likely two models'. "
        )

    def _with_place(self, name: str) -> str:
        return f"{name} (it lies in {self.elsewhere[name]} instead)" if name in self.elsewhere else name

    def _with_hint(self, name: str) -> str:
        return f"{name} (near {self.nearest[name]})" if name in self.nearest else name


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}: {listed(names)}" if names else ""


def find_nearest(missing: Sequence[str], unexpected: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """For each missing name the unexpected one nearest to it, and for each unexpected one the missing or known one."""
    lost, strange, others = Neighbours(missing), Neighbours(unexpected), Neighbours(known)
    found = {name: strange.find(name) for name in missing}
    found |= {name: lost.find(name) or others.find(name) for name in unexpected}
    return {name: near for name, near in found.items() if near is not None}
