"""A vendor backend on top of the portable one: preferred where it fits, and it fits one width only."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from hal.backend import Capabilities

from .portable import DummyPortable


class DummyNarrow(DummyPortable):
    """The portable calls for heads of 64, ranked first."""

    name: ClassVar[str] = "dummy:narrow"
    capabilities: ClassVar[Capabilities] = replace(DummyPortable.capabilities, head_dims=frozenset({64}), rank={"d1": 0})
    provides: ClassVar[frozenset[str]] = frozenset({"paged_attention"})
