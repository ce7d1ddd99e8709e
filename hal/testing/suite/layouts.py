"""The cache layouts that a backend's cases are made of."""

from __future__ import annotations

from hal.common.capabilities import Capabilities
from hal.common.errors import NotBuiltError
from hal.common.layouts import UNQUANTISED, Layout, attention_layout, index_layout, latent_layout
from hal.testing.case import Profile


def declared_layouts(capabilities: Capabilities, *families: str) -> tuple[str, ...]:
    """Names of the layouts a backend takes in some families, each once; NotBuiltError for one that has no case yet."""
    chosen = [family for family in families if family in capabilities.families]
    names = dict.fromkeys(name for family in chosen for name in capabilities.kv_layouts.get(family, ()))
    for name in names:
        if name not in UNQUANTISED:
            raise NotBuiltError(f"the conformance suite has no cases for the cache layout {name!r} yet")
    return tuple(names)


def sample_layout(name: str, dtype: str, profile: Profile) -> Layout:
    """A layout of the profile's usual widths."""
    if name == "kv":
        return attention_layout(profile.heads[0][1], *profile.widths[-1], dtype)
    if name == "latent":
        return latent_layout(*profile.latents[0], dtype)
    return index_layout(profile.index[1], dtype)
