"""Whether positions come from `position_ids` alone: a step holds many requests, so no one length of a cache can say them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from .errors import NEXT_STEP, UnsupportedModelError
from .tokenwise import ProbeRun, Sample, furthest_apart


class FarCache(DynamicCache):
    """A cache that claims `length` earlier tokens and keeps none."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The claim."""
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The claim."""
        return self.length

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_args: Any, **_kwargs: Any) -> tuple[Any, Any]:
        """The new keys and values, which is all there is."""
        return key_states, value_states


def draw_far_samples(near: Sample, max_model_len: int) -> tuple[Sample, Sample]:
    """A sample's tokens at the last positions that the limits allow: as hal gives them, and behind a cache of that length."""
    count = min(near.tokens.shape[1], max_model_len)
    first, tokens = max_model_len - count, near.tokens[:, :count]
    positions = torch.arange(first, max_model_len, device=tokens.device)[None]
    return Sample(tokens=tokens, positions=positions), Sample(tokens=tokens, positions=positions, cache=FarCache(first))


def check_positions(module: PreTrainedModel, plain: ProbeRun, cached: ProbeRun, max_model_len: int) -> None:
    """Raise UnsupportedModelError where the claimed length of the cache changed what a layer attends with."""
    found = furthest_apart(module, plain, cached)
    if found is not None:
        raise UnsupportedModelError(
            f"{type(module).__name__}: {found.what} depend on how many tokens a cache holds (by {found.share:.0%} at position "
            f"{max_model_len - 1}), not on position_ids alone, and a step of hal holds requests of many lengths; lower "
            f"max_model_len {max_model_len} until they do not, or {NEXT_STEP}"
        )
