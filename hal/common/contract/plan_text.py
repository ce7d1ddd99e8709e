"""A plan in words, part by part."""

from __future__ import annotations

from collections.abc import Sequence

from hal.config.runs import format_ids

from .buffer import Buffer
from .cache_groups import CacheGroup
from .selection import Selection


def format_bytes(count: float) -> str:
    """A size with a binary unit: "1.5 GiB"; below 10 KiB in bytes, digits grouped."""
    if count < 10 * 1024:
        return f"{count:,.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def describe_layers(selections: Sequence[Selection | None]) -> list[str]:
    """A line for each backend, with the layers that it serves."""
    served: dict[str, list[int]] = {}
    for layer_id, selection in enumerate(selections):
        served.setdefault(selection.backend if selection else "no attention of hal's", []).append(layer_id)
    return [f"  layer{'s' if len(ids) > 1 else ''} {format_ids(ids)}: {name}" for name, ids in served.items()]


def describe_caches(groups: Sequence[CacheGroup]) -> list[str]:
    """A line for each cache group."""
    lines = []
    for group in groups:
        window = f", window {group.window}" if group.window is not None else ""
        tokens = "token" if group.tokens_per_row == 1 else f"{group.tokens_per_row} tokens"
        lines.append(
            f"  cache group {group.group_id} ({group.part}): {len(group.layer_ids)} layers of {group.layout.name}, "
            f"{group.layout.bytes_per_token} bytes per {tokens} and layer{window}"
        )
    return lines


def describe_buffers(buffers: Sequence[Buffer], workspace_bytes: int) -> list[str]:
    """A line for all buffers together, and one for each."""
    lines = [f"    {each.name}: {list(each.shape)} {each.dtype}, {format_bytes(each.nbytes)}" for each in buffers]
    return [f"  {format_bytes(workspace_bytes)} of workspace:", *lines]
