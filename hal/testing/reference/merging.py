"""Partial results joined by their LSE, and attention sinks."""

from __future__ import annotations

import math

import torch


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [tokens, heads, v_head_dim] and lse [tokens, heads] over both key sets; a side whose lse is not finite is empty."""
    out = torch.zeros(out_a.shape).double()
    lse = torch.full(lse_a.shape, -math.inf).double()
    for token in range(lse_a.shape[0]):
        for head in range(lse_a.shape[1]):
            sides = [(out_a[token, head].double(), float(lse_a[token, head]))]
            sides.append((out_b[token, head].double(), float(lse_b[token, head])))
            alive = [(value, level) for value, level in sides if math.isfinite(level)]
            if not alive:
                continue
            if len(alive) == 1:
                out[token, head], lse[token, head] = alive[0]
                continue
            top = max(level for _, level in alive)
            total = sum(math.exp(level - top) for _, level in alive)
            out[token, head] = sum(value * (math.exp(level - top) / total) for value, level in alive)
            lse[token, head] = top + math.log(total)
    return out, lse


def apply_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """out with exp(sink) added to its softmax denominator: out * sum / (sum + exp(sink)), sum being exp(lse); 0 without keys."""
    share = torch.sigmoid(lse.double() - sink.double())[..., None]
    return torch.where(lse.isneginf()[..., None], 0, out.double() * share)
