"""The arrays of cache groups in which several tokens share a row, worked out of a step's own; numpy and torch alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def row_regions(tokens_per_row: Sequence[int], max_requests: int, max_tokens: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """What the groups need beside the arrays of every step: lengths and bounds in rows, in execution order, per group."""
    groups = len(tokens_per_row)
    if max(tokens_per_row, default=1) == 1:
        return {}
    return {"row_lens": ((groups, max_requests), "int32"), "row_bounds": ((groups, max_tokens), "int32")}


def fill_rows(
    tokens_per_row: Sequence[int], arrays: Mapping[str, Any], is_ordered: bool, num_reqs: int, num_tokens: int, num_padded: int
) -> None:
    """Turn the token slots of such groups into row slots, -1 but for a row's last token, and count lengths in rows.

    A page holds whole rows, so a token closes a row where its slot does.
    """
    lens = arrays["seq_lens" if is_ordered else "ordered_lens"][:num_reqs]
    for group, shared in enumerate(tokens_per_row):
        if shared == 1:
            continue
        behind = arrays["slots"][group][:num_padded] + 1
        arrays["slots"][group][:num_padded] = behind // shared * (behind % shared == 0) - 1
        arrays["row_lens"][group][:num_reqs] = lens // shared
        arrays["row_bounds"][group][:num_tokens] = arrays["key_bounds"][:num_tokens] // shared
