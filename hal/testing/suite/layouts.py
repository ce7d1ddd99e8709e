"""The cache layouts that a backend's cases are made of."""

from __future__ import annotations

from collections.abc import Callable

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.errors import NotBuiltError
from hal.common.contract.layouts import (
    UNQUANTISED,
    Layout,
    attention_fp8_layout,
    attention_layout,
    change_variant,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    index_layout,
    latent_fp8_layout,
    latent_layout,
)
from hal.testing.case import Profile, Sizes

LATENTS = ("latent", "latent_fp8", "fp8_ds_mla")
ROWS = (*LATENTS, "compressed")
_KNOWN = ("kv", "kv_fp8", *ROWS, "indexer", "indexer_fp8")


def declared_layouts(capabilities: Capabilities, *families: str) -> tuple[str, ...]:
    """Names of the layouts a backend takes in some families, each once; NotBuiltError for one that has no cases."""
    chosen = [family for family in families if family in capabilities.families]
    names = dict.fromkeys(name for family in chosen for name in capabilities.kv_layouts.get(family, ()))
    return _check_names(tuple(names))


def declared_index_layouts(capabilities: Capabilities) -> tuple[str, ...]:
    """Names of the layouts a backend takes for index keys; NotBuiltError for one that has no cases."""
    return _check_names(capabilities.index_layouts)


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in _KNOWN:
            raise NotBuiltError(f"the conformance suite has no cases for the cache layout {name!r} yet")
    return names


def sample_layout(name: str, dtype: str, profile: Profile) -> Layout:
    """A layout of the profile's usual widths."""
    if name in ("kv", "kv_fp8"):
        return heads_layout(name, profile.heads[0][1], profile.widths[-1], dtype)
    if name in ROWS:
        return rows_layout(name, profile.latents[0], dtype)
    return keys_layout(name, profile.index[1], dtype)


def heads_layout(name: str, kv_heads: int, widths: tuple[int, int], dtype: str) -> Layout:
    """`kv` or `kv_fp8` of (head_dim, v_head_dim)."""
    return attention_layout(kv_heads, *widths, dtype) if name == "kv" else attention_fp8_layout(kv_heads, *widths)


def rows_layout(name: str, widths: tuple[int, int], dtype: str) -> Layout:
    """A layout of latent rows of (kv_lora_rank, qk_rope_head_dim); a compressed row's head is both."""
    lora, rope = widths
    if name == "latent":
        return latent_layout(lora, rope, dtype)
    make: Callable[[int, int], Layout] = latent_fp8_layout if name == "latent_fp8" else fp8_ds_mla_layout
    return compressed_layout(lora + rope, rope) if name == "compressed" else make(lora, rope)


def keys_layout(name: str, head_dim: int, dtype: str) -> Layout:
    """`indexer` or `indexer_fp8`."""
    return index_layout(head_dim, dtype) if name == "indexer" else index_fp8_layout(head_dim)


def sizes_for(name: str, sizes: Sizes) -> Sizes:
    """The sizes at which a layout is checked: a quantised one differs in how its rows are read, so nothing is crossed."""
    return sizes if name in UNQUANTISED else sizes.uncrossed


def on_device(layout: Layout, backend: Backend) -> Layout:
    """The layout in the e4m3 variant of the backend's device, e4m3fn where it has none of its own."""
    return change_variant(layout, backend.device.fp8 or "e4m3fn")
