"""The indexer of sparse attention: its widths, and which layers own one."""

from __future__ import annotations

from .errors import ConfigError
from .fields import Fields
from .shape import IndexerShape
from .values import as_width


def read_indexer(fields: Fields) -> IndexerShape | None:
    """The indexer of a layer that owns one, or None where the model picks no tokens. ConfigError: a top-k without widths."""
    topk = fields.count("index_topk")
    if topk is None:
        return None
    return IndexerShape(
        topk=topk,
        num_heads=fields.require_count("index_n_heads"),
        head_dim=fields.require_count("index_head_dim"),
        pool=fields.count("index_kpool") or 1,
    )


def read_owners(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Which layers own an indexer: an explicit list, else a pattern string, else every freq-th layer from an offset.

    A layer that owns none reuses the choice of the last owner before it, so the first layer must own one.
    """
    owners = _listed(fields, num_layers) or _patterned(fields, num_layers) or _periodic(fields, num_layers)
    if not owners[0]:
        raise ConfigError("layer 0 shares an indexer's choice but no layer before it owns an indexer; expected an owner")
    return owners


def _listed(fields: Fields, num_layers: int) -> tuple[bool, ...] | None:
    types = fields.sequence("indexer_types")
    if types is None:
        return None
    if len(types) < num_layers:
        raise ConfigError(f"indexer_types has {len(types)} entries, expected {num_layers}, one per layer")
    unknown = [kind for kind in types if kind not in ("full", "shared")]
    if unknown:
        raise ConfigError(f"indexer_types holds {unknown[0]!r}, expected 'full' or 'shared'")
    return tuple(kind == "full" for kind in types[:num_layers])


def _patterned(fields: Fields, num_layers: int) -> tuple[bool, ...] | None:
    pattern = fields.raw("index_topk_pattern")
    if not isinstance(pattern, (str, list, tuple)) or not pattern:
        return None
    if len(pattern) < num_layers:
        raise ConfigError(f"index_topk_pattern has {len(pattern)} entries, expected {num_layers}, one per layer")
    return tuple(mark != "S" for mark in pattern[:num_layers])


def _periodic(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    frequency = fields.count("index_topk_freq") or 1
    offset = fields.first("index_skip_topk_offset", as_width)
    skip = 2 if offset is None else offset
    return tuple(max(layer - skip + 1, 0) % frequency == 0 for layer in range(num_layers))
