"""The text decoder inside a generating model."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


def find_decoder(module: PreTrainedModel) -> PreTrainedModel:
    """The text decoder inside a generating model, by transformers' own word where that is a model."""
    decoder: torch.nn.Module = module.get_decoder()
    # For some classes get_decoder() is a last projection that happens to be named so.
    base: Any = module.base_model
    found: PreTrainedModel = decoder if isinstance(decoder, PreTrainedModel) else base
    return found
