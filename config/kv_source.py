"""Which layer's KV a layer reads, for models that share it between layers."""

from __future__ import annotations

from .errors import ConfigError
from .fields import Fields
from .values import as_count, as_width


def read_kv_sources(fields: Fields, types: tuple[str, ...]) -> tuple[int, ...]:
    """For each layer, the layer whose KV it reads; its own number where it owns it.

    From an explicit list; else `num_kv_shared_layers` (the last ones read the last owner of their own type); else
    cross-layer sharing in groups (`use_cla`, `cla_share_factor`).
    """
    count = len(types)
    listed = fields.sequence("kv_source_layers")
    if listed is not None:
        return _listed(listed, count)
    shared = fields.count("num_kv_shared_layers")
    if shared is not None:
        return _last_of_type(types, shared)
    factor = fields.count("cla_share_factor") if fields.flag("use_cla") else None
    return tuple(layer - layer % (factor or 1) for layer in range(count))


def _listed(listed: tuple[object, ...], count: int) -> tuple[int, ...]:
    if len(listed) < count:
        raise ConfigError(f"kv_source_layers has {len(listed)} entries, expected {count}, one per layer")
    sources = [as_width(source, "kv_source_layers") for source in listed[:count]]
    for layer, source in enumerate(sources):
        if source is None or source > layer or sources[source] != source:
            raise ConfigError(
                f"kv_source_layers sends layer {layer} to {listed[layer]!r}, expected itself or an earlier layer that owns its KV"
            )
    return tuple(source for source in sources if source is not None)


def _last_of_type(types: tuple[str, ...], shared: int) -> tuple[int, ...]:
    first = len(types) - shared
    owners = {kind: layer for layer, kind in enumerate(types[: max(first, 0)])}
    missing = sorted({kind for kind in types if kind not in owners})
    if missing:
        raise ConfigError(
            f"num_kv_shared_layers is {shared} of {len(types)} layers, which leaves no layer of type {missing[0]} that owns KV"
        )
    return tuple(layer if layer < first else owners[kind] for layer, kind in enumerate(types))


def read_group_sources(fields: Fields, field: str, count: int) -> tuple[int, ...] | None:
    """For each layer the last one listed at or before it, -1 before the first; None where the list is unset (DeepSeek-V4.1)."""
    listed = fields.sequence(field)
    if listed is None:
        return None
    marks = {0 if item == 0 and not isinstance(item, bool) else as_count(item, field) for item in listed}
    if None in marks:
        raise ConfigError(f"{field} is {list(listed)!r}, expected layer numbers")
    sources, last = [], -1
    for layer in range(count):
        last = layer if layer in marks else last
        sources.append(last)
    return tuple(sources)
