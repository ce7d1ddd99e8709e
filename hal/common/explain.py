"""A plan in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal.config.runs import format_ids

if TYPE_CHECKING:
    from .plan import Plan


def format_bytes(count: float) -> str:
    """A size with a binary unit: "1.5 GiB"; below 10 KiB in bytes, digits grouped."""
    if count < 10 * 1024:
        return f"{count:,.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def explain_plan(plan: Plan) -> str:
    """Backends with their layers, caches by group, buffers by name."""
    ranks = f" on each of {plan.parallel.dcp} ranks" if plan.parallel.dcp > 1 else ""
    lines = [f"{plan.shape.model_type} on {plan.device.target} in {plan.dtype}, pages of {plan.block_size} tokens{ranks}"]
    served: dict[str, list[int]] = {}
    for layer_id, selection in enumerate(plan.selections):
        served.setdefault(selection.backend if selection else "no attention of hal's", []).append(layer_id)
    lines += [f"  layer{'s' if len(ids) > 1 else ''} {format_ids(ids)}: {name}" for name, ids in served.items()]
    for group in plan.groups:
        window = f", window {group.window}" if group.window is not None else ""
        tokens = "token" if group.tokens_per_row == 1 else f"{group.tokens_per_row} tokens"
        lines.append(
            f"  cache group {group.group_id} ({group.part}): {len(group.layer_ids)} layers of {group.layout.name}, "
            f"{group.layout.bytes_per_token} bytes per {tokens} and layer{window}"
        )
    lines.append(f"  {format_bytes(plan.bytes_per_token)} per token, {format_bytes(plan.page_bytes)} per page")
    lines.append(f"  {format_bytes(plan.workspace_bytes)} of workspace:")
    lines += [f"    {each.name}: {list(each.shape)} {each.dtype}, {format_bytes(each.nbytes)}" for each in plan.buffers]
    return "\n".join(lines)
