"""Figures of an hsaco, from the assembly text and the metadata at its end."""

from __future__ import annotations

import re
from typing import Any

from .figures import Figures, count_asked

_MATRIX = re.compile(r"^\s+v_(?:s?mfma|smfmac|s?wmma|swmmac)_", re.MULTILINE)
_STORE = re.compile(r"^\s+(?:global|buffer|flat)_(?:store|atomic)_", re.MULTILINE)


def read_hsaco(compiled: Any) -> Figures:
    """The figures of a kernel that triton.compile made; RuntimeError where its metadata lacks one.

    Registers are vector ones per lane, accumulation registers included. Private memory without a spilled register is a
    stack all the same, and counts by its bytes.
    """
    text = compiled.asm["amdgcn"]
    spilled, stack = _read(text, "vgpr_spill_count"), _read(text, "private_segment_fixed_size")
    asked_matrix, asked_stores = count_asked(compiled.asm["ttir"])
    return Figures(
        shared_bytes=max(compiled.metadata.shared, _read(text, "group_segment_fixed_size")),
        registers=_read(text, "vgpr_count"),
        spills=spilled or stack,
        scalar_spills=_read(text, "sgpr_spill_count"),
        matrix=len(_MATRIX.findall(text)),
        stores=len(_STORE.findall(text)),
        asked_matrix=asked_matrix,
        asked_stores=asked_stores,
    )


def _read(text: str, name: str) -> int:
    found = re.search(rf"^\s+\.{name}:\s*(\d+)", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the kernel's metadata has no .{name}")
    return int(found.group(1))
