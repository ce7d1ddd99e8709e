"""The account of a config's fields: each is read, known not to matter to attention, or named in a warning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .errors import ConfigError
from .fields import Fields
from .harmless import is_harmless, is_off
from .layer_types import LAYOUT_FIELDS
from .names import FIELDS, GROUP_FIELDS, SPELLINGS
from .source import MISSING, Level
from .text_config import SUBCONFIGS
from .values import as_count

GROUPS = ("attn_config", "sparse_attention_config", "attention_other_setting")
"""Groups whose fields are accounted for one by one; of other groups single values are read: positions, state-space layers."""

HARMLESS_IN_GROUPS = frozenset({"attn_impl", "attn_uses_sequence_id", "clip_qkv", "model_type", "qk_gn", "qk_ln"})
"""What attn_config says of things before attention and of how it is computed."""

ORDINARY = {"alibi_bias_max": 8, "sparse_score_type": "max"}
"""Values that say what the kind that is read means anyway."""

ONCE = (0, 1)
"""Class defaults with which what a field counts happens once or not at all."""


def name_unread(fields: Fields) -> tuple[str, ...]:
    """Warnings that name the fields whose meaning for attention no rule of the reader knows."""
    conflicts: list[str] = []
    levels = fields.levels[1:]
    names = [level.describe(name) for level in levels for name in _unread(fields, level, conflicts)]
    names += [group.describe(name) for group in _groups(fields) for name in group.unread() if _counts_in_group(group, name)]
    if not names:
        return tuple(conflicts)
    text = (
        f"not understood: {', '.join(sorted(names))}; where one of these decides how often layers run, what they see, "
        "how scores are made or what is cached, the model is not served as it is meant"
    )
    return (*conflicts, text)


def _unread(fields: Fields, level: Level, conflicts: list[str]) -> Iterator[str]:
    """The level's fields that nothing accounts for, and those that the type's attention code reads and hal does not."""
    known = level.known
    chain = {one.path for one in fields.levels}
    for name in level.unread():
        if name in known.silent or name in known.unread or name in SUBCONFIGS or name in known.nested or is_harmless(name):
            continue
        if name in FIELDS and (name in LAYOUT_FIELDS or name in known.fields or _is_answered(fields, level, name, conflicts)):
            continue
        value = level.peek(name)
        if level.describe(name) not in chain and not is_off(name, value) and not _is_another_part(level, name):
            yield name
    if level is fields.text_level:
        for name, default in known.unread.items():
            value = level.peek(name)
            value = default if value is MISSING else value
            if not is_off(name, value) and not (value == default and default in ONCE):
                yield name


def _is_answered(fields: Fields, level: Level, name: str, conflicts: list[str]) -> bool:
    """Whether another spelling answers; one that says something else is a warning of its own."""
    field = next((field for field, names in SPELLINGS.items() if name in names), "")
    entry = fields.entry(field) if field else None
    if entry is None or not entry.stated:
        return False
    other, used = _count(level.peek(name), name), _count(entry.value, entry.where)
    if other and used and other != used and not fields.encoder_decoder and field != "max_position_embeddings":
        conflicts.append(f"{level.describe(name)} is {other} but {entry.where} is {used}; the latter is used")
    return True


def _count(value: object, where: str) -> int | None:
    try:
        return as_count(value, where)
    except ConfigError:
        return None


def _is_another_part(level: Level, name: str) -> bool:
    """Whether the value is a config of its own, with a type and without layers: a projector, a head."""
    value = level.peek(name)
    child = level.peek_child(name) if isinstance(value, Mapping) or hasattr(value, "__dict__") else None
    if child is None or child.peek("model_type") in (MISSING, None, ""):
        return False
    return all(child.peek(one) in (MISSING, None) for one in SPELLINGS["num_hidden_layers"])


def _groups(fields: Fields) -> Iterator[Level]:
    yield from (group for name in GROUPS if (group := fields.nested(name)) is not None)
    yield from fields.layer_groups()
    yield from (attention for block in fields.groups("block_configs") if (attention := block.child("attention")) is not None)


def _counts_in_group(group: Level, name: str) -> bool:
    value = group.peek(name)
    told = name in HARMLESS_IN_GROUPS or name in GROUP_FIELDS or is_harmless(name) or ORDINARY.get(name, MISSING) == value
    return not told and not is_off(name, value)
