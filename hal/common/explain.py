"""A plan in words."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import Plan


def format_bytes(count: float) -> str:
    """A size as people write it: "68.6 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise ValueError(f"{count} is no size")


def explain_plan(plan: Plan) -> str:
    """Backends by runs of layers, caches by group, buffers by name."""
    lines = [f"{plan.shape.model_type} on {plan.device.target} in {plan.dtype}, pages of {plan.block_size} tokens"]
    rows = list(enumerate(plan.selections))
    for name, run in groupby(rows, key=lambda row: row[1].backend if row[1] else "no attention of hal's"):
        ids = [row[0] for row in run]
        lines.append(f"  layers {ids[0]}-{ids[-1]}: {name}" if len(ids) > 1 else f"  layer {ids[0]}: {name}")
    for group in plan.groups:
        window = f", window {group.window}" if group.window is not None else ""
        lines.append(
            f"  cache group {group.group_id} ({group.part}): {len(group.layer_ids)} layers of {group.layout.name}, "
            f"{group.layout.bytes_per_token} bytes per token and layer{window}"
        )
    lines.append(f"  {format_bytes(plan.bytes_per_token)} per token, {format_bytes(plan.page_bytes)} per page")
    lines.append(f"  {format_bytes(plan.workspace_bytes)} of workspace:")
    lines += [f"    {each.name}: {list(each.shape)} {each.dtype}, {format_bytes(each.nbytes)}" for each in plan.buffers]
    return "\n".join(lines)
