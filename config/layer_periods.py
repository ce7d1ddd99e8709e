"""Layer types that follow from a rule: a cycle, a period, what a type fills in, a window.

Each rule answers with the canonical type of every layer, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterable

from .errors import ConfigError
from .fields import Fields
from .kinds import CHUNKED, FULL, LINEAR, SLIDING, meaning
from .known_types import WINDOWED
from .layer_lists import Rule, check_length, marked_kind
from .source import MISSING
from .values import as_count, as_width

RECURRENT_TRAITS = ("state_size", "ssm_state_size", "d_state", "attention_hidden_size", "qk_dim_factor")
"""Fields of state-space and recurrent models; with them and without attention heads no layer attends."""


def cycled(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """RecurrentGemma: `block_types`, repeated; full attention slides where there is a window."""
    items = fields.sequence("block_types")
    if items is None:
        return None
    kinds = [meaning(item, "block_types") for item in items]
    if fields.raw("attention_window_size") is not MISSING:
        kinds = [SLIDING if kind == FULL else kind for kind in kinds]
    return tuple(kinds[layer % len(kinds)] for layer in range(num_layers))


def every(field: str, off: str) -> Rule:
    """Every n-th layer attends in full, the rest are of the other type."""

    def rule(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
        period = _period(fields, field)
        return None if period is None else tuple(off if (layer + 1) % period else FULL for layer in range(num_layers))

    return rule


def _period(fields: Fields, field: str) -> int | None:
    """A period; one that a type fills in gives way to the pattern that the type makes of it."""
    return fields.count(field) if fields.states(field) or "layer_types" not in fields.known.patterns else None


def sliding_pattern(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """`sliding_window_pattern`: a period, or a string such as LLLG that is repeated; the last layer is global then."""
    value = fields.raw("sliding_window_pattern")
    if not isinstance(value, str) or not value:
        return every("sliding_window_pattern", SLIDING)(fields, num_layers)
    cycle = [marked_kind(mark, "sliding_window_pattern") for mark in value]
    return tuple(cycle[layer % len(cycle)] if layer < num_layers - 1 else FULL for layer in range(num_layers))


def offset_period(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """Jamba: every `attn_layer_period`-th layer attends, from `attn_layer_offset` on."""
    period = _period(fields, "attn_layer_period")
    if period is None:
        return None
    offset = fields.first("attn_layer_offset", as_width) or 0
    return tuple(FULL if layer % period == offset else LINEAR for layer in range(num_layers))


def chunked(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
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


def default_list(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """A list that the type fills in as it stands, of use only for the number of layers it was made for."""
    items = fields.sequence("layer_types")
    if items is None or len(items) != num_layers:
        return None
    return tuple(meaning(item, "layer_types") for item in items)


def filled_in(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """The pattern of layer types that the type itself fills in, unless the config itself switches windows on."""
    stated = stated_period(fields, "layer_types", num_layers)
    if stated is not None:
        return tuple(meaning(item, "layer_types") for item in stated)
    switched = "use_sliding_window" in fields.known.fields and fields.states("use_sliding_window")
    is_windowed = switched and fields.flag("use_sliding_window")
    pattern = fields.known.patterns.get(WINDOWED if is_windowed and fields.count("sliding_window") else "layer_types")
    if pattern is None or (is_windowed and WINDOWED not in fields.known.patterns):
        return None
    return tuple(meaning(item, "layer_types") for item in pattern.expand(num_layers))


def stated_period(fields: Fields, target: str, num_layers: int) -> tuple[object, ...] | None:
    """A list that the type makes of a period under a name of its own, where the config states that."""
    rule = fields.known.periods.get(target)
    value = fields.text_level.stated(rule.source) if rule is not None else MISSING
    period = as_count(value, fields.text_level.describe(rule.source)) if rule is not None and value is not MISSING else None
    return rule.expand(period, num_layers) if rule is not None and period is not None else None


def recurrent(fields: Fields, num_layers: int) -> tuple[str, ...] | None:
    """State-space and recurrent models: no layer attends."""
    if fields.raw("num_attention_heads") is not MISSING and fields.raw("qk_dim_factor") is MISSING and not _only_state(fields):
        return None
    marks = [name for name in RECURRENT_TRAITS if fields.raw(name) not in (MISSING, None)]
    return (LINEAR,) * num_layers if marks else None


def _only_state(fields: Fields) -> bool:
    """Mamba-2 counts state heads under `num_heads`, which elsewhere are attention heads; it has no field for those."""
    entry = fields.entry("num_attention_heads")
    return entry is not None and entry.where.rpartition(".")[2] == "num_heads" and fields.raw("state_size") is not MISSING


def windowed(fields: Fields, num_layers: int) -> tuple[str, ...]:
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
