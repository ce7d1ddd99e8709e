"""DeepSeek-V4's compressed layers: a window of rows, and one entry per `ratio` tokens behind it."""

from __future__ import annotations

from .errors import ConfigError
from .fields import Fields
from .kinds import COMPRESSED_HEAVY, COMPRESSED_SPARSE
from .layer_lists import HEAVY_RATIO
from .values import as_count, as_width


def read_compress_ratios(fields: Fields, types: tuple[str, ...], num_drafts: int) -> tuple[int, ...] | None:
    """Tokens per compressed entry for each layer and draft layer, 0 for a layer with its window alone; None in other models.

    From `compress_ratios`, one per layer with the draft layers' behind; else from `compress_rates` by layer type.
    """
    ratios = fields.sequence("compress_ratios")
    if ratios is not None:
        widths = [as_width(ratio, "compress_ratios") or 0 for ratio in ratios]
        missing = max(0, len(types) + num_drafts - len(widths))
        return (*widths[: len(types) + num_drafts], *([0] * missing))
    if COMPRESSED_SPARSE not in types and COMPRESSED_HEAVY not in types:
        return None
    return (*(_rate(fields, kind) for kind in types), *([0] * num_drafts))


_OLD_RATES = {COMPRESSED_SPARSE: "compress_rate_csa", COMPRESSED_HEAVY: "compress_rate_hca"}
"""Single fields that older files have in place of compress_rates; transformers lets them win."""


def _rate(fields: Fields, kind: str) -> int:
    if kind not in (COMPRESSED_SPARSE, COMPRESSED_HEAVY):
        return 0
    rates = fields.nested("compress_rates")
    value = fields.count(_OLD_RATES[kind]) if fields.states(_OLD_RATES[kind]) else None
    if value is None and rates is not None:
        value = as_count(rates.read(kind) or None, f"compress_rates.{kind}")
    if value is None:
        raise ConfigError(
            f"compress_rates.{kind} is unset but a layer is of that type; expected a ratio such as 4 or {HEAVY_RATIO}"
        )
    return value


def do_entries_overlap(fields: Fields, kind: str, ratio: int) -> bool:
    """Whether an entry also holds what the group before left for it: where an indexer picks, but for V4.1's ratios of 1 and 2.

    V4.1 lists its ratios layer by layer; where they go by layer type, the type alone decides.
    """
    return kind == COMPRESSED_SPARSE and (ratio > 2 or fields.nested("compress_rates") is not None)


def read_rope_width(fields: Fields, head_dim: int) -> int:
    """The rotary lanes at the end of a compressed row: stated, else the rotary share of head_dim."""
    stated = fields.first("qk_rope_head_dim", as_width)
    if stated is not None:
        return stated
    share = fields.number("partial_rotary_factor")
    return int(head_dim * share) if share is not None and share <= 1 else 0
