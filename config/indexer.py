"""The indexer of sparse attention: its widths, and which layers own one."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import ConfigError
from .fields import Entry, Fields
from .kinds import BLOCK_SPARSE, COMPRESSED_HEAVY, COMPRESSED_SPARSE, CROSS, LINEAR, SLIDING, SPARSE
from .kv_source import read_group_sources
from .layer_lists import check_length
from .layer_shape import IndexerShape
from .source import MISSING
from .values import as_width

_PARTS = (
    *("index_n_heads", "index_head_dim", "index_kpool", "index_topk_freq", "index_topk_pattern", "indexer_types"),
    "index_source_layer_ids",
)
_NOTHING_BELOW = {"index_kpool": 1, "index_topk_freq": 1}
"""Numbers that ask for nothing: no pooling, an indexer on every layer."""

_NEVER = (SLIDING, COMPRESSED_HEAVY, LINEAR, CROSS)


def read_indexers(fields: Fields, types: tuple[str, ...]) -> tuple[IndexerShape | None, ...]:
    """Each layer's indexer, None where it attends to everything it may see. ConfigError: one that is stated by halves."""
    topk = fields.count("index_topk")
    if topk is None:
        picks_blocks = BLOCK_SPARSE in types or fields.text_level.peek("index_topk_blocks") not in (MISSING, None)
        check_half(fields, "index_topk", () if picks_blocks else _PARTS)
        return (None,) * len(types)
    widths = {
        "topk": topk,
        "num_heads": fields.require_count("index_n_heads"),
        "head_dim": fields.require_count("index_head_dim"),
        "pool": fields.count("index_kpool") or 1,
    }
    named = SPARSE in types or COMPRESSED_SPARSE in types
    sparse = [kind in (SPARSE, COMPRESSED_SPARSE) if named else kind not in _NEVER for kind in types]
    owners = _owners(fields, sparse)
    return tuple(IndexerShape(**widths, owns=owns) if picks else None for picks, owns in zip(sparse, owners, strict=True))


def check_half(fields: Fields, missing: str, parts: Sequence[str]) -> None:
    """ConfigError where parts of a scorer of keys are stated but not how many it picks; an explicit null switches it off."""
    found = ", ".join(f"{entry.where}={entry.value!r}" for name in parts if (entry := _usable(fields, name)) is not None)
    unset = fields.entry(missing)
    filled_in = fields.known.fields.get(missing)
    if not found and (unset is None or not unset.stated or filled_in is None):
        return
    beside = found or f"{filled_in} by default in its type"
    if unset is not None and unset.value is None:
        fields.warn(f"{unset.where} is null beside {beside}; every layer attends to all that it may see")
        return
    held = f"{unset.where} is {unset.value!r}" if unset is not None else f"{missing} is nowhere in the config"
    raise ConfigError(
        f"{held} beside {beside}: half an indexer; expected how many keys it picks under {missing}, "
        f"or {missing} null to attend to all of them"
    )


def _usable(fields: Fields, name: str) -> Entry | None:
    """A stated value that asks for an indexer: a size, a list, a pattern."""
    entry = fields.entry(name)
    if entry is None or not entry.stated or entry.value in (MISSING, None, "", 0, (), []) or isinstance(entry.value, bool):
        return None
    if isinstance(entry.value, int | float):
        return entry if entry.value > _NOTHING_BELOW.get(name, 0) else None
    return entry


def _owners(fields: Fields, sparse: list[bool]) -> tuple[bool, ...]:
    """Which layers own an indexer: a list of sources or types, else a pattern, else every freq-th layer from an offset.

    A layer that owns none reuses the choice of the last owner before it, so the first sparse layer must own one.
    """
    count = len(sparse)
    sources = read_group_sources(fields, "index_source_layer_ids", count)
    if sources is not None:
        owners: tuple[bool, ...] | None = tuple(source == layer for layer, source in enumerate(sources))
    else:
        owners = _listed(fields, count) or _patterned(fields, count)
    owners = owners or _periodic(fields, count)
    first = next((layer for layer, picks in enumerate(sparse) if picks), None)
    if first is not None and not any(owners[: first + 1]):
        raise ConfigError(f"layer {first} shares an indexer's choice but no layer before it owns an indexer; expected an owner")
    return owners


def _listed(fields: Fields, count: int) -> tuple[bool, ...] | None:
    types = fields.sequence("indexer_types")
    if types is None:
        return None
    unknown = [kind for kind in types if kind not in ("full", "shared")]
    if unknown:
        raise ConfigError(f"indexer_types holds {unknown[0]!r}, expected 'full' or 'shared'")
    return tuple(kind == "full" for kind in check_length(fields, "indexer_types", types, count))


def _patterned(fields: Fields, count: int) -> tuple[bool, ...] | None:
    pattern = fields.raw("index_topk_pattern")
    if not isinstance(pattern, (str, list, tuple)) or not pattern:
        return None
    return tuple(mark not in ("S", "shared") for mark in check_length(fields, "index_topk_pattern", tuple(pattern), count))


def _periodic(fields: Fields, count: int) -> tuple[bool, ...]:
    filled_in = fields.known.patterns.get("indexer_types")
    if filled_in is not None and not fields.states("index_topk_freq"):
        return tuple(kind == "full" for kind in filled_in.expand(count))
    frequency = fields.count("index_topk_freq") or 1
    offset = fields.first("index_skip_topk_offset", as_width)
    skip = 2 if offset is None else offset
    return tuple(max(layer - skip + 1, 0) % frequency == 0 for layer in range(count))
