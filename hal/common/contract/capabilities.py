"""What a backend declares about itself, as data; selection compares it with requests."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from hal.config.sizes import INDEX_LAYOUTS, KIND_LAYOUTS

Graphs = Literal["never", "uniform_single", "uniform_batch", "always"]
GRAPH_LEVELS: tuple[Graphs, ...] = ("never", "uniform_single", "uniform_batch", "always")

_COUNTS = {"default_block_size": 1, "block_size_multiple": 1, "topk_multiple": 1, "max_index_pool": 1, "max_spec_tokens": 0}
SINK_CALLS = frozenset({"paged_attention", "sparse_mla"})
"""The calls that may apply a sink themselves."""
_COLLECTIONS = {
    **dict.fromkeys(("families", "archs", "head_dims", "v_head_dims", "position_biases", "inner_sinks"), Set),
    **dict.fromkeys(("dtypes", "index_layouts"), tuple),
    **dict.fromkeys(("kv_layouts", "rank", "arithmetic"), Mapping),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """A backend's declaration. Empty collections mean "any" for archs and head widths, "none" for everything else.

    families: layer families it serves. kv_layouts: per family, the preferred first. index_layouts: likewise for index keys.
    block_size_multiple: page sizes are multiples of it. rank: a lower one is chosen first on an arch, "*" for the rest.
    dcp: rows_from_topk keeps to a DCP rank's share. key_ranges: paged_attention and index_scores honour a PagedBatch's
    key_starts and key_stops. More than one DCP rank needs both.
    masked_varlen: varlen_attention takes `selected`. inner_sinks: which of paged_attention and sparse_mla take `sink`, for
    results that nothing is merged with; what the others give goes through apply_sink.
    arithmetic: the type it computes in, where wider than the request's.
    compiled_launches: launches compile, so warm_up has a list.
    """

    families: frozenset[str]
    dtypes: tuple[str, ...]
    kv_layouts: Mapping[str, tuple[str, ...]]
    index_layouts: tuple[str, ...] = ()
    archs: frozenset[str] = frozenset()
    rank: Mapping[str, int] = field(default_factory=dict)
    default_block_size: int = 16
    block_size_multiple: int = 1
    head_dims: frozenset[int] = frozenset()
    v_head_dims: frozenset[int] = frozenset()
    max_heads: int | None = None
    topk_multiple: int = 1
    max_index_pool: int = 1
    window: bool = False
    sink: bool = False
    softcap: bool = False
    non_causal: bool = False
    chunk: bool = False
    position_biases: frozenset[str] = frozenset()
    dcp: bool = False
    key_ranges: bool = False
    lse: bool = False
    deterministic: bool = False
    graphs: Graphs = "never"
    max_spec_tokens: int = 0
    masked_varlen: bool = False
    inner_sinks: frozenset[str] = frozenset()
    arithmetic: Mapping[str, str] = field(default_factory=dict)
    compiled_launches: bool = False


def find_faults(declared: object) -> list[str]:
    """Sentences on what no backend could mean by a declaration; selection compares with the rest as it is."""
    if not isinstance(declared, Capabilities):
        return [f"capabilities is {declared!r}, expected a hal.Capabilities"]
    faults = [
        f"{name} is {value!r}, expected a {kind.__name__.lower()}"
        for name, kind in _COLLECTIONS.items()
        if not isinstance(value := getattr(declared, name), kind)
    ]
    if faults:
        return faults
    counts: dict[str, tuple[object, int]] = {name: (getattr(declared, name), least) for name, least in _COUNTS.items()}
    counts |= {f"rank[{arch!r}]": (rank, rank) for arch, rank in declared.rank.items()}
    for name, (value, least) in counts.items():
        if not isinstance(value, int) or value < least:
            faults.append(f"{name} is {value!r}, expected a whole number" + (f" of at least {least}" if name in _COUNTS else ""))
    if declared.graphs not in GRAPH_LEVELS:
        faults.append(f"graphs is {declared.graphs!r}, expected one of {', '.join(GRAPH_LEVELS)}")
    faults += [
        f"{call} takes no sink, expected among {', '.join(sorted(SINK_CALLS))}"
        for call in sorted(declared.inner_sinks - SINK_CALLS)
    ]
    for family, names in declared.kv_layouts.items():
        known = KIND_LAYOUTS.get("mla" if family == "sparse_mla" else family, ())
        faults += [
            f"{family} has no KV layout {name!r}, known: {', '.join(known) or 'none'}" for name in names if name not in known
        ]
    faults += [
        f"index keys have no layout {name!r}, known: {', '.join(INDEX_LAYOUTS)}"
        for name in declared.index_layouts
        if name not in INDEX_LAYOUTS
    ]
    return faults
