"""What a backend declares about itself, as data; selection compares it with requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .request import Graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """A backend's declaration. Empty collections mean "any" for archs and head widths, "none" for everything else.

    families: layer families it serves. kv_layouts: per family, the preferred first. index_layouts: likewise for index keys.
    block_size_multiple: page sizes are multiples of it. rank: a lower one is chosen first on an arch, "*" for the rest.
    dcp: rows_from_topk keeps to a DCP rank's share. key_ranges: paged_attention and index_scores honour a PagedBatch's
    key_starts and key_stops. More than one DCP rank needs both.
    masked_varlen: varlen_attention takes `selected`. arithmetic: the type it computes in, where wider than the request's.
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
    arithmetic: Mapping[str, str] = field(default_factory=dict)
    compiled_launches: bool = False
