"""Layer types that a config writes out: lists of types, marks, layer numbers, pattern strings, descriptions of blocks.

Each rule answers with the canonical type of every layer, or None where the config does not use its spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import ConfigError
from .fields import Fields
from .kinds import BLOCK_SPARSE, COMPRESSED_HEAVY, COMPRESSED_SPARSE, FULL, LINEAR, SLIDING, meaning
from .source import MISSING, Level
from .values import as_count, as_width

HEAVY_RATIO = 128
"""From this compress ratio on a layer attends to every compressed entry; below it an indexer picks (DeepSeek-V4: 4 and 128)."""

PATTERN_CHARS = {"*": FULL, "A": FULL, "M": LINEAR, "-": LINEAR, "E": LINEAR, "G": FULL, "L": SLIDING, "|": LINEAR}

Rule = Callable[[Fields, int], "tuple[str, ...] | None"]


def check_length(fields: Fields, field: str, items: Sequence[object], num_layers: int) -> Sequence[object]:
    """The entries of the decoder layers; entries for the draft layers may follow. ConfigError: any other length."""
    drafts = fields.count("num_nextn_predict_layers") or 0
    if len(items) not in (num_layers, num_layers + drafts):
        raise ConfigError(f"{field} has {len(items)} entries, expected {num_layers}, one per layer")
    return items[:num_layers]


def listed(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """`layer_types`, where the config itself states them."""
    items = fields.sequence("layer_types") if fields.states("layer_types") else None
    if items is None:
        return None
    return tuple(meaning(item, "layer_types") for item in check_length(fields, "layer_types", items, num_layers))


def attention_types(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """GPT-Neo: groups of types with how often each group is repeated."""
    groups = fields.sequence("attention_types")
    if groups is None:
        return None
    names: list[object] = []
    for group in groups:
        if not isinstance(group, (list, tuple)) or len(group) != 2 or not isinstance(group[0], (list, tuple)):
            raise ConfigError(f"attention_types holds {group!r}, expected a list of types and how often it is repeated")
        times = as_count(group[1], "attention_types")
        if times is None or times > num_layers:
            raise ConfigError(f"attention_types repeats {group[1]!r} times, expected 1 to {num_layers}")
        names += list(group[0]) * times
    return tuple(meaning(name, "attention_types") for name in check_length(fields, "attention_types", names, num_layers))


def compressed(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """DeepSeek-V4: a compress ratio per layer, 0 for those that keep only a window."""
    ratios = fields.sequence("compress_ratios")
    if ratios is None:
        return None
    if len(ratios) < num_layers:
        raise ConfigError(f"compress_ratios has {len(ratios)} entries, expected at least {num_layers}, one per layer")
    widths = [as_width(ratio, "compress_ratios") or 0 for ratio in ratios[:num_layers]]
    return tuple(SLIDING if not ratio else COMPRESSED_HEAVY if ratio >= HEAVY_RATIO else COMPRESSED_SPARSE for ratio in widths)


def pattern_string(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """Nemotron-H: `hybrid_override_pattern`, one mark per layer; bars between them count for nothing."""
    pattern = fields.text("hybrid_override_pattern")
    if pattern is None:
        return None
    marks = [mark for mark in pattern if mark != "|"]
    return tuple(
        marked_kind(mark, "hybrid_override_pattern")
        for mark in check_length(fields, "hybrid_override_pattern", marks, num_layers)
    )


def marked_kind(mark: object, where: str) -> str:
    """The type that one mark of a pattern string stands for. ConfigError: a mark that stands for none."""
    kind = PATTERN_CHARS.get(mark) if isinstance(mark, str) else None
    if kind is None:
        raise ConfigError(f"{where} holds {mark!r}, expected one of {' '.join(PATTERN_CHARS)}")
    return kind


def marked(field: str, on: str, off: str) -> Rule:
    """A list with one 0/1 mark per layer."""

    def rule(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
        marks = fields.sequence(field)
        if marks is None:
            return None
        return tuple(on if mark else off for mark in check_length(fields, field, marks, num_layers))

    return rule


def indexed(field: str, on: str, off: str) -> Rule:
    """A list of the layers of one type; every other layer is of the other."""

    def rule(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
        chosen = index_set(fields, field)
        return tuple(on if layer in chosen else off for layer in range(num_layers)) if chosen else None

    return rule


def index_set(fields: Fields, field: str) -> frozenset[int]:
    """The layer numbers that a field lists; empty where it lists none. ConfigError: an entry that is no layer number."""
    items = fields.sequence(field) or ()
    wrong = [item for item in items if not isinstance(item, int) or isinstance(item, bool) or item < 0]
    if wrong:
        raise ConfigError(f"{field} holds {wrong[0]!r}, expected layer numbers")
    return frozenset(item for item in items if isinstance(item, int))


def linear_config(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """Kimi-Linear's nested lists, whose layer numbers start at 1."""
    group = fields.nested("linear_attn_config")
    listed = group.read("full_attn_layers") if group else MISSING
    if not isinstance(listed, (list, tuple)):
        return None
    return tuple(FULL if layer + 1 in listed else LINEAR for layer in range(num_layers))


def block_sparse(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """`sparse_attention_config`: a mark per layer that attends to blocks of keys; the others attend in full."""
    group = fields.nested("sparse_attention_config")
    marks = group.read("sparse_attention_freq") if group else MISSING
    if group is None or not isinstance(marks, (list, tuple)) or group.read("use_sparse_attention") is False:
        return None
    checked = check_length(fields, group.describe("sparse_attention_freq"), marks, num_layers)
    return tuple(BLOCK_SPARSE if mark else FULL for mark in checked)


def blocks(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """Nemotron-NAS: one description per block, whose attention may be absent or replaced."""
    blocks = fields.groups("block_configs")
    if not blocks:
        return None
    check_length(fields, "block_configs", blocks, num_layers)
    return tuple(_block_kind(block) for block in blocks[:num_layers])


def _block_kind(block: Level) -> str:
    attention = block.child("attention")
    replaced = attention is not None and (attention.read("no_op") or attention.read("replace_with_linear"))
    return LINEAR if replaced else FULL
