"""Checkpoint tensors of parts that this model does not build: drafts, other towers, keys that a layer takes from another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from hal.config import ModelShape

from .decoders import find_decoder
from .keys import NUMBER, ResolvedKey
from .skipping import FILL_VALUES, MASKS

BUFFERS = MASKS | FILL_VALUES | {"inv_freq", "original_inv_freq", "position_ids"}
"""Names that a class's pattern means as a buffer; what is left out of these is decided by exact name and shape alone."""

_ANY_REST = re.compile(r"(\\\.)?\.\*$|\\\.$|\.$")


@dataclass(slots=True)
class UnbuiltParts:
    """Which names of a checkpoint the module's class, or its config, says belong to parts that are not built."""

    module: PreTrainedModel
    shape: ModelShape
    rules: list[ClassRule] = field(init=False)
    built: frozenset[str] = field(init=False)
    lists: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        patterns = sorted(self.module._keys_to_ignore_on_load_unexpected or ())
        self.rules = [rule for rule in map(ClassRule, patterns) if not rule.names_buffer]
        self.built = frozenset(_paths(self.module))
        self.lists = frozenset(_decoder_lists(self.module, self.shape.num_layers))

    def explain(self, key: str, renamed: str) -> str | None:
        """Why a key that resolves to no parameter belongs to a part that is not built, None if it does not.

        renamed: the key after transformers' renamings. A class's pattern counts only for whole subtrees that the module
        does not have; a name inside a part that is built stays unexpected.
        """
        for name in dict.fromkeys((key, renamed)):
            for rule in self.rules:
                root = rule.find_root(name)
                if root is not None and not self._is_built(root):
                    return f"{root} is not built ({type(self.module).__name__} leaves out {rule.pattern})"
        return self._explain_by_config(renamed)

    def _explain_by_config(self, key: str) -> str | None:
        match = re.match(r"(.*?)\.(\d{1,9})\.(.+)", key)
        if match is None:
            return None
        path, number, inner = self._locate(match.group(1)), int(match.group(2)), match.group(3)
        if path not in self.lists:
            return None
        shape = self.shape
        if shape.num_layers <= number < shape.num_layers + len(shape.draft_layers):
            return f"draft layer {number}"
        if number >= shape.num_layers:
            return None
        layer = shape.layer(number)
        if ".indexer." in key and layer.indexer is not None and not layer.indexer.owns:
            return f"layer {number} reuses an earlier layer's index"
        if layer.kv_source != number and not self._has_part(path, number, inner) and self._has_part(path, layer.kv_source, inner):
            return f"layer {number} reads the keys and values of layer {layer.kv_source}"
        return None

    def _has_part(self, path: str, number: int, inner: str) -> bool:
        return f"{path}.{number}.{inner.rpartition('.')[0] or inner}" in self.built

    def _is_built(self, path: str) -> bool:
        return self._locate(path) in self.built

    def _locate(self, path: str) -> str:
        """The path as the module has it, with or without the base model's prefix; unchanged where it has neither."""
        prefix = f"{self.module.base_model_prefix}."
        return next((name for name in (path, prefix + path, path.removeprefix(prefix)) if name in self.built), path)


@dataclass(slots=True)
class ClassRule:
    """One pattern of `_keys_to_ignore_on_load_unexpected`, read as the root of a subtree.

    transformers searches it anywhere in a name, so that `attention.bias` takes attention.bias_proj.weight along and
    `layers.61.*` takes layers.610; here it ends where a component ends, unless it says itself that more may follow.
    """

    pattern: str
    expression: re.Pattern[str] = field(init=False)
    is_open: bool = field(init=False)

    def __post_init__(self) -> None:
        core = _ANY_REST.sub("", self.pattern)
        is_prefix = self.pattern.endswith(".*") and not self.pattern.endswith(r"\..*")
        self.is_open = is_prefix or re.fullmatch(r"\w+", core) is not None
        self.expression = re.compile(core)

    @property
    def names_buffer(self) -> bool:
        """Whether the pattern means a buffer rather than a part of the model."""
        return self.pattern.replace("\\", "").rpartition(".")[2].strip("^$") in BUFFERS

    def find_root(self, key: str) -> str | None:
        """The shortest front of `key`, in whole components, that the pattern matches; None where it does not match."""
        for match in self.expression.finditer(key):
            before, after = key[match.start() - 1 : match.start()], key[match.end() : match.end() + 1]
            ends = after in ("", ".") or (self.is_open and after == "_" and not match.group()[-1:].isdigit())
            starts = before in ("", ".", "_") or match.group().startswith(".")
            if match.group() and starts and ends:
                end = key.find(".", match.end())
                return key if end < 0 else key[:end]
        return None


def find_nests(resolved: Mapping[str, ResolvedKey]) -> list[str]:
    """The prefix that transformers' own renamings take off most keys, so that the model is read from under it; [] for none."""
    fronts = Counter(key.removesuffix(place.target)[:-1] for key, place in resolved.items() if key.endswith(f".{place.target}"))
    return [front for front, count in fronts.most_common(1) if front and 2 * count > len(resolved)]


def find_towers(unexpected: Collection[str], nests: Collection[str]) -> dict[str, str]:
    """Key -> the part that it belongs to, of keys beside the wrapper that this model was read out of.

    nests: the prefixes that the model was found under. A multimodal file, of which a text model takes the part under
    language_model, holds towers, with blocks of their own, beside that; without a single list of blocks there is no tower,
    and names stay unexpected.
    """
    for nest in nests:
        beside = [key for key in unexpected if not key.startswith(f"{nest}.")]
        roots = {key: _first_apart(key, nest) for key in beside}
        if any(NUMBER.search(key) for key in beside):
            return {key: f"{root} is not built; the model was read from {nest}, beside it" for key, root in roots.items()}
    return {}


def _first_apart(key: str, nest: str) -> str:
    """The front of a key up to the first component that differs from the nest's."""
    parts, others = key.split("."), nest.split(".")
    depth = next((place for place, (part, other) in enumerate(zip(parts, others, strict=False)) if part != other), 0)
    return ".".join(parts[: depth + 1])


def _decoder_lists(module: PreTrainedModel, num_layers: int) -> Iterator[str]:
    inside = set(find_decoder(module).modules())
    for name, child in module.named_modules():
        if not isinstance(child, torch.nn.ModuleList) or len(child) != num_layers or child not in inside:
            continue
        if any(isinstance(getattr(part, "layer_idx", None), int) for part in child.modules()):
            yield name


def _paths(module: PreTrainedModel) -> Iterator[str]:
    yield from (name for name, _ in module.named_modules() if name)
    yield from (name for name, _ in module.named_parameters(remove_duplicate=False))
    yield from (name for name, _ in module.named_buffers(remove_duplicate=False))
