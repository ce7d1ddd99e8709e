"""What putting a checkpoint's tensors together would give, from their shapes: transformers' own converters on the meta device."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging as transformers_logging

from .checkpoint_header import StoredTensor
from .dequantising import quantizer_of
from .errors import CheckpointError, describe
from .keys import NUMBER, KeyResolver, ResolvedKey, conversions


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """filled: parameters that would hold their tensors; mismatched: parameter -> what is wrong with them."""

    filled: frozenset[str]
    mismatched: Mapping[str, str] = field(default_factory=dict)


NOTHING = DryRun(filled=frozenset())

Group = tuple[tuple[str, ResolvedKey], ...]
"""The tensors of one parameter, and where each goes."""


def run_dry(resolver: KeyResolver, resolved: Mapping[str, ResolvedKey], tensors: Mapping[str, StoredTensor]) -> DryRun:
    """The outcome for keys that resolve, each parameter from one copy or one converter; the resolver's module is used up.

    resolved: in the loader's order (keys.natural_order of the names it is handed).
    Parameters of the same name but for its numbers, made of tensors of the same shapes, come out alike, so one of them is
    converted for all: a model has thousands of experts and a handful of kinds.
    """
    filled: set[str] = set()
    mismatched: dict[str, str] = {}
    groups: dict[str, list[tuple[str, ResolvedKey]]] = defaultdict(list)
    for key, place in resolved.items():
        if place.converter is not None:
            groups[place.target].append((key, place))
        elif tensors[key].shape != tuple(resolver.state[place.target].shape):
            mismatched[place.target] = _say_shapes(tensors[key].shape, resolver.state[place.target].shape)
        else:
            filled.add(place.target)
    alike: dict[object, list[Group]] = defaultdict(list)
    for found in groups.values():
        alike[_likeness(found, tensors)].append(tuple(found))
    samples = [several[0] for several in alike.values()]
    outcome = (
        _convert(resolver.module, [pair for group in samples for pair in group], tensors)
        if samples
        else DryRun(filled=frozenset())
    )
    for several in alike.values():
        sample = _targets(several[0])
        for group in several:
            names = dict(zip(sample, _targets(group), strict=True))
            filled |= {names[name] for name in sample if name in outcome.filled}
            mismatched |= {names[name]: outcome.mismatched[name] for name in sample if name in outcome.mismatched}
    return DryRun(filled=frozenset(filled), mismatched=mismatched)


def _targets(group: Group) -> tuple[str, ...]:
    return group[0][1].targets


def _likeness(group: list[tuple[str, ResolvedKey]], tensors: Mapping[str, StoredTensor]) -> object:
    target = NUMBER.sub("*", group[0][1].target)
    return target, tuple((place.pattern, tensors[key].dtype, tensors[key].shape) for key, place in group)


def _convert(module: PreTrainedModel, pairs: list[tuple[str, ResolvedKey]], tensors: Mapping[str, StoredTensor]) -> DryRun:
    empty = {place.source: torch.empty(tensors[key].shape, dtype=tensors[key].torch_dtype, device="meta") for key, place in pairs}
    config = LoadStateDictConfig(device_map={"": "meta"}, weight_mapping=conversions(module), hf_quantizer=quantizer_of(module))
    with quiet_transformers():
        try:
            report = convert_and_load_state_dict_in_model(module, empty, config)[0]
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"transformers' loader cannot put these tensors together: {describe(error)}") from error
    mismatched = {name: _say_shapes(have, want) for name, have, want in sorted(report.mismatched_keys)}
    for name, words in report.conversion_errors.items():
        mismatched[name] = "its parts cannot be put together: " + _last_words(str(words))
    wanted = {name for _, place in pairs for name in place.targets}
    return DryRun(filled=frozenset(wanted - report.missing_keys - mismatched.keys()), mismatched=mismatched)


def _say_shapes(have: Any, want: Any) -> str:
    return f"the checkpoint has {list(have)}, the model wants {list(want)}"


def _last_words(error: str) -> str:
    """What a converter's error says, without the stack that transformers puts before it."""
    lines = [line for line in error.splitlines() if line.strip() and not line.startswith(("Traceback", " "))]
    return re.sub(r"\s+", " ", " ".join(dict.fromkeys(lines)) or error).strip()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers' loading bar and report off for the block, then as they were: the plan says it all."""
    shown, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if shown:
            transformers_logging.enable_progress_bar()
