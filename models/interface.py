"""The two functions that transformers calls for models running on hal: one for attention, one for masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from .errors import UnsupportedModelError

NAME = "hal"
BINDING = "_hal_binding"
"""Attribute of an attention module that holds what serves it; per instance, so that models never share state."""

MASK_RULE = "_hal_mask_rule"
"""Attribute of a mask tensor that holds the rule transformers would have filled it from."""


class Binding(Protocol):
    """What serves one attention module."""

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """Attention of one step -> [1, tokens, heads, width].

        query: [1, heads, tokens, width]; key and value as the module made them.
        """
        ...


@dataclass(slots=True)
class AttentionCall:
    """What a module asked for besides its tensors."""

    mask: torch.Tensor | None
    scaling: float | None
    dropout: float
    keywords: dict[str, Any]


def register() -> None:
    """Make "hal" an attention implementation that transformers knows; doing it again changes nothing."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, make_mask)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """The registered attention function; weights are never returned. UnsupportedModelError for a module that is not bound."""
    binding: Binding | None = module.__dict__.get(BINDING)
    if binding is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} asked for hal attention but is not bound to a running hal model; "
            "use hal.models.load() or attach(), and Model.generate() or Model.forward()"
        )
    return binding.attend(module, query, key, value, AttentionCall(attention_mask, scaling, dropout, keywords)), None


def make_mask(
    batch_size: int, q_length: int, mask_function: Callable[..., torch.Tensor], device: torch.device, **_unused: Any
) -> torch.Tensor:
    """The registered mask function: one always-true column [batch, 1, queries, 1], with the rule attached for the check.

    hal masks by lengths, windows and chunks from the model's shape; nothing of size queries x keys is ever made.
    """
    mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device).expand(batch_size, 1, q_length, 1)
    setattr(mask, MASK_RULE, mask_function)
    return mask
