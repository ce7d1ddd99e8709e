"""Who serves one layer, as an answer to its request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One layer's answer. providers maps each call ("write_cache", "sparse_mla.decode") to the backend that serves it.

    rejected has every other backend's reasons; a supported one that ranks lower is absent from it. source says who chose.
    """

    backend: str
    providers: Mapping[str, str]
    kv_layout: str
    index_layout: str | None
    block_size: int
    rejected: Mapping[str, tuple[Reason, ...]]
    source: str
