"""The arrays of cache groups that keep other rows than one per token, worked out of a step's own; numpy and torch alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hal.common.planning.row_rules import RowRule


def fill_rows(
    rules: Sequence[RowRule],
    arrays: Mapping[str, Any],
    block_size: int,
    is_ordered: bool,
    num_reqs: int,
    num_tokens: int,
) -> None:
    """Turn the token slots of such groups into row slots, -1 for tokens without a row, and count lengths in rows.

    Both counts include padding, which a captured graph reads. A page holds whole rows, so a token closes a row where its
    slot does.
    """
    lens = arrays["seq_lens" if is_ordered else "ordered_lens"][:num_reqs]
    for group, rule in enumerate(rules):
        slots, shared = arrays["slots"][group][:num_tokens], rule.tokens_per_row
        if shared > 1:
            behind = slots + 1
            slots[:] = behind // shared * (behind % shared == 0) - 1
            arrays["row_lens"][group][:num_reqs] = lens // shared
            arrays["row_bounds"][group][:num_tokens] = arrays["key_bounds"][:num_tokens] // shared
        elif rule.rows_kept is not None:
            slots[:] = _last_of_pages(slots, arrays, block_size, rule.rows_kept)


def _last_of_pages(slots: Any, arrays: Mapping[str, Any], block_size: int, kept: int) -> Any:
    """Row slots of the tokens that no later one of this step writes over, -1 of the others."""
    count = slots.shape[0]
    positions, last = arrays["positions"][:count], arrays["seq_lens"][arrays["req_id"][:count]] - 1
    over = positions + kept
    is_kept = (slots >= 0) & ((over > positions - positions % block_size + block_size - 1) | (over > last))
    return (slots // block_size * kept + slots % block_size % kept + 1) * is_kept - 1
