"""Sizes in words: what a token takes, what fits, and how much of the memory is gone before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hal.common.contract.plan import Plan
from hal.common.contract.plan_text import format_bytes

from .explain_answer import Capacity, DeviceAnswer, Explanation, LayerAnswer


def say_layer_bytes(answer: Explanation, row: LayerAnswer) -> str:
    """Bytes of one token in one of a row's layers, index keys after the plus sign."""
    chosen = row.selection
    kv_layout = answer.shape.layout_of(row.layer, answer.kv_layout) if chosen is None else chosen.kv_layout
    kv = row.layer.kv_bytes_per_token(kv_layout, answer.dtype, answer.parallel.tp)
    index = row.layer.index_bytes_per_token((chosen and chosen.index_layout) or kv_layout, answer.dtype)
    return f"{kv:,} + {index:,} B" if index else f"{kv:,} B"


def size_rows(answer: Explanation, found: DeviceAnswer) -> Iterator[tuple[str, str]]:
    """Names of sizes and what there is to say of each; one rank's."""
    layers = [row for row in found.layers if not row.is_draft]
    index = f" + {found.index_bytes_per_token:,} B of index keys" if found.index_bytes_per_token else ""
    total = format_bytes(found.kv_bytes_per_token + found.index_bytes_per_token)
    yield "a token takes", f"{found.kv_bytes_per_token:,} B of KV{index} over all layers, {total}{_say_full(layers)}"
    if answer.shape.draft_layers:
        yield "draft layers", f"{_draft_bytes(answer):,} B more, in no other size here: plans leave draft layers out"
    if found.plan is not None:
        if any(group.part not in ("kv", "index") for group in found.plan.groups):
            kept = "the entries that tokens share and what compressors remember"
            yield "in hal's pools", f"{found.plan.bytes_per_token:,} B per token, with {kept}"
        yield "workspace", format_bytes(found.plan.workspace_bytes)
    if answer.weights is not None:
        yield "weights", f"{format_bytes(answer.weights.bytes_on_rank)}: {answer.weights.basis}"
    if not found.kv_bytes_per_token:
        yield "capacity", "no layer keeps KV here"
    elif found.capacity is None:
        yield "capacity", "give --memory to learn how many tokens fit"
    else:
        yield from _capacity_rows(answer, found.capacity, found.plan)


def _draft_bytes(answer: Explanation) -> int:
    """KV and index keys of one token over the draft layers."""
    shape, dtype = answer.shape, answer.dtype
    layouts = [(layer, shape.layout_of(layer, answer.kv_layout)) for layer in shape.draft_layers]
    kv = sum(layer.kv_bytes_per_token(layout, dtype, answer.parallel.tp) for layer, layout in layouts)
    return kv + sum(layer.index_bytes_per_token(layout, dtype) for layer, layout in layouts)


def _say_full(layers: Sequence[LayerAnswer]) -> str:
    """What the bytes of a token leave aside and the capacity does not."""
    windows = "windows" if any(row.layer.window is not None for row in layers) else ""
    compressed = "compressed layers" if any((row.layer.compress_ratio or 0) > 1 for row in layers) else ""
    parts = " and ".join(filter(None, (windows, compressed)))
    return f"; {parts} counted in full" if parts else ""


def _capacity_rows(answer: Explanation, capacity: Capacity, plan: Plan | None) -> Iterator[tuple[str, str]]:
    """The lengths that requests can have, none above the one asked for, then what pools hold over all of them."""
    beside = [name for name, taken in (("weights", answer.weights), ("workspace", plan)) if taken is not None]
    aside = f" beside the {' and the '.join(beside)}" if beside else " before weights and workspace"
    memory = format_bytes(capacity.memory_bytes)
    if capacity.taken_bytes >= capacity.memory_bytes:
        takes = "takes" if beside == ["workspace"] else "take"
        yield "capacity", f"none: the {' and the '.join(beside)} {takes} {format_bytes(capacity.taken_bytes)} of {memory}"
        return
    each = f", or {capacity.num_seqs} of {capacity.each_request:,} each" if capacity.num_seqs > 1 else ""
    bound = " (max_model_len)" if capacity.is_bound else ""
    yield "capacity", f"one request of {capacity.one_request:,} tokens{bound}{each}, in {memory}{aside}"
    if plan is None or capacity.pool_tokens is None:
        return
    windowed = any(group.window is not None for group in plan.groups)
    counted = "; pages that a window has left behind are kept" if windowed else ""
    yield "hal's pool", f"a pool of {capacity.pool_tokens:,} tokens over all requests, in pages of {plan.block_size}{counted}"
    if capacity.group_pool_tokens is not None and capacity.group_pool_tokens > capacity.pool_tokens:
        yield (
            "a pool per group",
            f"pools of {capacity.group_pool_tokens:,} tokens over all requests, since windows give pages back",
        )
