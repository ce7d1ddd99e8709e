"""Each layer's type, from whichever of the many spellings a config uses.

The first rule that applies decides: a list of types, compress ratios, pattern strings, 0/1 lists, index lists, periods; then
the pattern that transformers fills in for the type; then the window rule (layer i slides when i >= max_window_layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .errors import ConfigError
from .fields import Fields
from .kinds import (
    BLOCK_SPARSE,
    CHUNKED,
    COMPRESSED_HEAVY,
    COMPRESSED_SPARSE,
    CROSS,
    FULL,
    LINEAR,
    SLIDING,
    meaning,
)
from .source import MISSING, Level
from .values import as_count, as_width

HEAVY_RATIO = 128
"""From this compress ratio on a layer attends to every compressed entry; below it an indexer picks (DeepSeek-V4: 4 and 128)."""

PATTERN_CHARS = {"*": FULL, "A": FULL, "M": LINEAR, "-": LINEAR, "E": LINEAR, "G": FULL, "L": SLIDING, "|": LINEAR}
RECURRENT_TRAITS = ("state_size", "ssm_state_size", "d_state", "attention_hidden_size", "qk_dim_factor")
"""Fields of state-space and recurrent models; with them and without attention heads no layer attends."""

Rule = Callable[[Fields, int], "tuple[str, ...] | None"]


def read_layer_types(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """The canonical type (see kinds) of each layer. ConfigError: a list whose length is not the number of layers."""
    types = next(types for rule in RULES if (types := rule(fields, num_layers)) is not None)
    cross = _index_set(fields, "cross_attention_layers")
    return tuple(CROSS if layer in cross else kind for layer, kind in enumerate(types)) if cross else types


def stated_layers(fields: Fields, stated: bool = False) -> int | None:
    """How many layers the lists of layer types describe, for configs that give no count; stated: the config's own lists only."""
    for field in ("hybrid_override_pattern", "layer_types", "block_configs"):
        value = fields.raw(field)
        if isinstance(value, (str, list, tuple)) and value and (fields.states(field) or not stated):
            return len([item for item in value if item != "|"])
    return None


def check_length(fields: Fields, field: str, items: Sequence[object], num_layers: int) -> Sequence[object]:
    """The entries of the decoder layers; entries for the draft layers may follow. ConfigError: any other length."""
    drafts = fields.count("num_nextn_predict_layers") or 0
    if len(items) not in (num_layers, num_layers + drafts):
        raise ConfigError(f"{field} has {len(items)} entries, expected {num_layers}, one per layer")
    return items[:num_layers]


def _listed(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    items = fields.sequence("layer_types") if fields.states("layer_types") else None
    if items is None:
        return None
    return tuple(meaning(item, "layer_types") for item in check_length(fields, "layer_types", items, num_layers))


def _compressed(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    ratios = fields.sequence("compress_ratios")
    if ratios is None:
        return None
    if len(ratios) < num_layers:
        raise ConfigError(f"compress_ratios has {len(ratios)} entries, expected at least {num_layers}, one per layer")
    widths = [as_width(ratio, "compress_ratios") or 0 for ratio in ratios[:num_layers]]
    return tuple(SLIDING if not ratio else COMPRESSED_HEAVY if ratio >= HEAVY_RATIO else COMPRESSED_SPARSE for ratio in widths)


def _pattern_string(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    pattern = fields.text("hybrid_override_pattern")
    if pattern is None:
        return None
    marks = [mark for mark in pattern if mark != "|"]
    return tuple(
        _char(mark, "hybrid_override_pattern") for mark in check_length(fields, "hybrid_override_pattern", marks, num_layers)
    )


def _attention_types(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
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


def _char(mark: object, where: str) -> str:
    kind = PATTERN_CHARS.get(mark) if isinstance(mark, str) else None
    if kind is None:
        raise ConfigError(f"{where} holds {mark!r}, expected one of {' '.join(PATTERN_CHARS)}")
    return kind


def _marked(field: str, on: str, off: str) -> Rule:
    """A list with one 0/1 mark per layer."""

    def rule(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
        marks = fields.sequence(field)
        if marks is None:
            return None
        return tuple(on if mark else off for mark in check_length(fields, field, marks, num_layers))

    return rule


def _indexed(field: str, on: str, off: str) -> Rule:
    """A list of the layers of one type; every other layer is of the other."""

    def rule(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
        chosen = _index_set(fields, field)
        return tuple(on if layer in chosen else off for layer in range(num_layers)) if chosen else None

    return rule


def _index_set(fields: Fields, field: str) -> frozenset[int]:
    items = fields.sequence(field) or ()
    wrong = [item for item in items if not isinstance(item, int) or isinstance(item, bool) or item < 0]
    if wrong:
        raise ConfigError(f"{field} holds {wrong[0]!r}, expected layer numbers")
    return frozenset(item for item in items if isinstance(item, int))


def _linear_config(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """Kimi-Linear's nested lists, whose layer numbers start at 1."""
    group = fields.nested("linear_attn_config")
    listed = group.read("full_attn_layers") if group else MISSING
    if not isinstance(listed, (list, tuple)):
        return None
    return tuple(FULL if layer + 1 in listed else LINEAR for layer in range(num_layers))


def _block_sparse(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    group = fields.nested("sparse_attention_config")
    marks = group.read("sparse_attention_freq") if group else MISSING
    if group is None or not isinstance(marks, (list, tuple)) or group.read("use_sparse_attention") is False:
        return None
    checked = check_length(fields, group.describe("sparse_attention_freq"), marks, num_layers)
    return tuple(BLOCK_SPARSE if mark else FULL for mark in checked)


def _blocks(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
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


def _cycled(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    items = fields.sequence("block_types")
    if items is None:
        return None
    kinds = [meaning(item, "block_types") for item in items]
    if fields.raw("attention_window_size") is not MISSING:
        kinds = [SLIDING if kind == FULL else kind for kind in kinds]
    return tuple(kinds[layer % len(kinds)] for layer in range(num_layers))


def _every(field: str, off: str) -> Rule:
    """Every n-th layer attends in full, the rest are of the other type."""

    def rule(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
        period = _period(fields, field)
        return None if period is None else tuple(off if (layer + 1) % period else FULL for layer in range(num_layers))

    return rule


def _period(fields: Fields, field: str) -> int | None:
    """A period; one that a type fills in gives way to the pattern that the type makes of it."""
    return fields.count(field) if fields.states(field) or "layer_types" not in fields.known.patterns else None


def _sliding_pattern(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """`sliding_window_pattern`: a period, or a string such as LLLG that is repeated; the last layer is global then."""
    value = fields.raw("sliding_window_pattern")
    if not isinstance(value, str) or not value:
        return _every("sliding_window_pattern", SLIDING)(fields, num_layers)
    cycle = [_char(mark, "sliding_window_pattern") for mark in value]
    return tuple(cycle[layer % len(cycle)] if layer < num_layers - 1 else FULL for layer in range(num_layers))


def _offset_period(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    period = _period(fields, "attn_layer_period")
    if period is None:
        return None
    offset = fields.first("attn_layer_offset", as_width) or 0
    return tuple(FULL if layer % period == offset else LINEAR for layer in range(num_layers))


def _chunked(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """Llama-4: layers with rope attend within chunks, the others in full; every 4th has no rope unless the config says which."""
    if fields.count("attention_chunk_size") is None or fields.raw("no_rope_layers") is MISSING:
        return None
    marks: Iterable[object] | None = fields.sequence("no_rope_layers")
    if marks is None:
        interval = fields.count("no_rope_layer_interval") or 4
        marks = [(layer + 1) % interval for layer in range(num_layers)]
    else:
        marks = check_length(fields, "no_rope_layers", tuple(marks), num_layers)
    return tuple(CHUNKED if mark else FULL for mark in marks)


def _filled_in(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    pattern = fields.known.patterns.get("layer_types")
    switched = "use_sliding_window" in fields.known.fields and fields.states("use_sliding_window")
    if pattern is None or (switched and fields.flag("use_sliding_window")):
        return None
    return tuple(meaning(item, "layer_types") for item in pattern.expand(num_layers))


def _default_list(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """A list that the type fills in as it stands, of use only for the number of layers it was made for."""
    items = fields.sequence("layer_types")
    if items is None or len(items) != num_layers:
        return None
    return tuple(meaning(item, "layer_types") for item in items)


def _recurrent(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    if fields.raw("num_attention_heads") is not MISSING and fields.raw("qk_dim_factor") is MISSING and not _only_state(fields):
        return None
    marks = [name for name in RECURRENT_TRAITS if fields.raw(name) not in (MISSING, None)]
    return (LINEAR,) * num_layers if marks else None


def _only_state(fields: Fields) -> bool:
    """Mamba-2 counts state heads under `num_heads`, which elsewhere are attention heads; it has no field for those."""
    entry = fields.entry("num_attention_heads")
    return entry is not None and entry.where.rpartition(".")[2] == "num_heads" and fields.raw("state_size") is not MISSING


def _windowed(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """Layer i slides when i >= max_window_layers; a window that reaches no layer is worth a warning."""
    window = fields.raw("sliding_window")
    if isinstance(window, (list, tuple)):
        if not window or num_layers % len(window):
            raise ConfigError(f"sliding_window has {len(window)} entries, expected a number that divides {num_layers} layers")
        return tuple(SLIDING if as_count(window[layer % len(window)], "sliding_window") else FULL for layer in range(num_layers))
    if fields.count("sliding_window") is None or fields.flag("use_sliding_window") is False:
        return (FULL,) * num_layers
    first = fields.first("max_window_layers", as_width) or 0
    if first >= num_layers:
        fields.warn(f"sliding_window is {window} but max_window_layers {first} leaves none of {num_layers} layers with a window")
    return tuple(SLIDING if layer >= first else FULL for layer in range(num_layers))


RULES: tuple[Rule, ...] = (
    _listed,
    _attention_types,
    _compressed,
    _pattern_string,
    _marked("hybrid_layer_pattern", SLIDING, FULL),
    _linear_config,
    _block_sparse,
    _blocks,
    _indexed("full_attn_idxs", FULL, LINEAR),
    _indexed("attn_layer_indices", FULL, LINEAR),
    _indexed("local_layer_ids", SLIDING, FULL),
    _marked("attn_type_list", FULL, LINEAR),
    _cycled,
    _every("full_attention_interval", LINEAR),
    _every("layer_group_size", LINEAR),
    _sliding_pattern,
    _offset_period,
    _chunked,
    _default_list,
    _filled_in,
    _recurrent,
    _windowed,
)
