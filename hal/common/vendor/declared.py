"""What a vendor's backend declares before it says more: its platform's portable one, less what the vendors' calls do not take."""

from __future__ import annotations

from dataclasses import replace

from hal.common.contract.capabilities import Capabilities
from hal.common.contract.layouts import UNQUANTISED


def narrow(portable: Capabilities) -> Capabilities:
    """The declaration without what the adapters hand to no library: quantised caches, key ranges and sinks. No graphs, either.

    Whether a library's calls may be captured is its own to state.
    """
    layouts = {family: tuple(name for name in names if name in UNQUANTISED) for family, names in portable.kv_layouts.items()}
    index_layouts = tuple(name for name in portable.index_layouts if name in UNQUANTISED)
    return replace(
        portable,
        kv_layouts=layouts,
        index_layouts=index_layouts,
        key_ranges=False,
        inner_sinks=frozenset(),
        graphs="never",
    )
