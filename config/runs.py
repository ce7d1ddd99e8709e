"""Layers that are alike, together, and layer ids in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .layer_shape import LayerShape

MOST_RUNS = 4
"""Runs of layer ids written out before the middle ones fall to an ellipsis."""


def group_layers(layers: Iterable[LayerShape]) -> tuple[tuple[LayerShape, tuple[int, ...]], ...]:
    """Layers that differ in nothing but their ids, each group by its first layer and all its ids."""
    groups: dict[LayerShape, list[LayerShape]] = {}
    for layer in layers:
        groups.setdefault(without_ids(layer), []).append(layer)
    return tuple((members[0], tuple(layer.layer_id for layer in members)) for members in groups.values())


def without_ids(layer: LayerShape) -> LayerShape:
    """The layer as id 0; what it reads of itself reads itself still, what it reads of another layer stays told apart."""
    own = layer.layer_id
    return replace(
        layer,
        layer_id=0,
        kv_source=0 if layer.kv_source == own else layer.kv_source + 1,
        entry_source=-1 if layer.entry_source == own else layer.entry_source,
    )


def format_ids(layer_ids: Iterable[int]) -> str:
    """Layer ids as ranges: "0-2, 5"; an even spacing is said as "0-30 by 2", the middle of a long list as "..."."""
    runs = [_format_run(run) for run in _runs(sorted(layer_ids))]
    if len(runs) > MOST_RUNS:
        runs = [*runs[: MOST_RUNS - 2], "...", runs[-1]]
    return ", ".join(runs)


def _runs(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Evenly spaced stretches, the longest first; a spacing other than 1 needs three members to count."""
    start = 0
    while start < len(ids):
        stop = start + 1
        step = ids[stop] - ids[start] if stop < len(ids) else 1
        while stop < len(ids) and ids[stop] - ids[stop - 1] == step:
            stop += 1
        if step != 1 and stop - start < 3:
            stop = start + 1
        yield ids[start:stop]
        start = stop


def _format_run(run: Sequence[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    step = run[1] - run[0]
    return f"{run[0]}-{run[-1]}" + (f" by {step}" if step != 1 else "")
