"""AITER: MLA decode and unified attention."""

from __future__ import annotations

from hal.common.backend import Backend
from hal.common.software import Library


class Aiter(Backend):
    """AITER: MLA decode and unified attention. Its calls are not written yet."""

    name = "rocm:aiter"
    platform = "rocm"
    libraries = (Library(name="aiter", distributions=("amd-aiter",)),)
