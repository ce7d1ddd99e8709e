"""The fleet as data: which archs have to be proved and how, and who serves what on each of them."""

from __future__ import annotations

if __name__ != "hal.matrix":
    raise ImportError("this folder is the package hal.matrix; import it by that name")

from .fleet import PlatformProof, read_fleet
from .support import SupportRow, support_table

__all__ = ["PlatformProof", "SupportRow", "read_fleet", "support_table"]
