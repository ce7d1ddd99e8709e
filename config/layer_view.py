"""The fields as one layer sees them: its share of per-layer values, and the twins that apply to its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from .errors import ConfigError
from .fields import Entry, Fields
from .kinds import FULL, SLIDING, is_layer_type
from .source import MISSING, PerLayerValues
from .values import Convert, as_count, as_number, as_width

T = TypeVar("T")

TWINS: dict[str, dict[str, tuple[str, ...]]] = {
    SLIDING: {"num_attention_heads": ("swa_num_attention_heads", "num_sliding_attention_heads")},
    FULL: {"head_dim": ("global_head_dim",), "num_key_value_heads": ("num_global_key_value_heads",)},
}
"""Fields that a config states apart for layers of one type; a sliding layer's are otherwise the plain name after `swa_`."""

SWA = frozenset(
    {"num_key_value_heads", "head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"}
)


class LayerView:
    """One layer's fields.

    kind is its canonical type; turn: earlier layers of that type. varies: something was read that other layers of this type
    may not share.
    """

    __slots__ = ("_twins", "fields", "kind", "layer_id", "num_layers", "turn", "varies")

    def __init__(self, fields: Fields, layer_id: int, kind: str, num_layers: int, turn: int = 0) -> None:
        self.fields = fields
        self.layer_id = layer_id
        self.kind = kind
        self.num_layers = num_layers
        self.turn = turn
        self._twins = TWINS.get(kind, {})
        self.varies = isinstance(fields.raw("per_layer_config"), Mapping)

    def count(self, field: str) -> int | None:
        """A positive whole number, or None where it is unset."""
        return self.first(field, as_count)

    def width(self, field: str) -> int | None:
        """A whole number of at least 0, or None where it is unset."""
        return self.first(field, as_width)

    def number(self, field: str) -> float | None:
        """A positive finite number, or None where it is unset."""
        return self.first(field, as_number)

    def first(self, field: str, convert: Convert[T]) -> T | None:
        """The layer's own usable value, else the model's."""
        for entry in self._own(field):
            found = convert(entry.value, entry.where)
            if found is not None:
                return found
        shared = self.fields.entry(field)
        if shared is not None and isinstance(shared.value, (list, tuple, Mapping)):
            return convert(self._share(shared), shared.where)
        return self.fields.first(field, convert)

    def _own(self, field: str) -> Iterator[Entry]:
        """Values stated for this layer, or for layers of its type, in the order in which they count."""
        group = self.fields.layer_group(self.layer_id)
        if group is not None and (value := group.read(field)) is not MISSING:
            yield Entry(group.describe(field), value, True)
        if self.kind == FULL and field == "num_key_value_heads" and self.fields.flag("attention_k_eq_v") is False:
            return
        names = self._twins.get(field, ())
        if self.kind == SLIDING and field in SWA:
            names = (*names, f"swa_{field}")
        for name in names:
            entry = self.fields.entry(name)
            if entry is not None:
                yield Entry(entry.where, self._share(entry), entry.stated)
        if self.kind == SLIDING:
            yield from self._other_setting(field)
        filled = self.fields.known.by_kind.get(self.kind, {})
        unstated = self.fields.raw("per_layer_config") in (MISSING, None)
        if field in filled and unstated and not isinstance(self.fields.raw(field), (list, tuple)):
            yield Entry(field, filled[field], False)

    def _other_setting(self, field: str) -> Iterator[Entry]:
        """Step-3.5's group of fields for sliding layers; only the head count is taken, as transformers does."""
        group = self.fields.nested("attention_other_setting") if field == "num_attention_heads" else None
        value = group.read(field) if group else MISSING
        if value is not MISSING:
            yield Entry(f"attention_other_setting.{field}", value, True)

    def _share(self, entry: Entry) -> object:
        value = entry.value
        if isinstance(value, Mapping) and any(is_layer_type(name) for name in value):
            return value.get(self.kind)
        if not isinstance(value, (list, tuple, PerLayerValues)):
            return value
        self.varies = True
        if len(value) < self.num_layers:
            raise ConfigError(f"{entry.where} has {len(value)} entries, expected {self.num_layers}, one per layer")
        return value[self.layer_id] if self.layer_id < len(value) else value[-1]
