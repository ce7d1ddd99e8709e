"""A module that cannot be taken over is given back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from .decoders import find_decoder
from .interface import BINDING
from .rerouting import QUERIES_PER_KEY, UNCHECKED

PATCHED = (BINDING, "expand_kv", "forward", "training", "_attn", "layer_idx", QUERIES_PER_KEY, UNCHECKED)
"""Attributes that taking over sets on module instances."""


@contextmanager
def undone_on_error(module: PreTrainedModel) -> Iterator[None]:
    """Within the block hal changes the module; an error that leaves it puts everything back, so that it computes as before."""
    decoder = find_decoder(module)
    implementation = decoder.config._attn_implementation
    before = [(child, {name: child.__dict__[name] for name in PATCHED if name in child.__dict__}) for child in module.modules()]
    try:
        yield
    except BaseException:
        for child, held in before:
            for name in PATCHED:
                child.__dict__.pop(name, None)
            child.__dict__.update(held)
        decoder.set_attn_implementation(implementation)
        decoder.config._attn_implementation = implementation
        raise
