"""One query over a list of keys: the arithmetic that every attention call shares."""

from __future__ import annotations

import math

import torch

from hal.common.contract.masking import CAUSAL, Masking


def attend_keys(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    softmax_scale: float,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [heads, v_head_dim] and lse [heads] of q [heads, head_dim] over keys [n, kv_heads, head_dim]; 0 and -inf for no keys.

    Query head h reads KV head h // (heads // kv_heads).
    """
    heads = q.shape[0]
    if keys.shape[0] == 0:
        return torch.zeros(heads, values.shape[-1]).double(), torch.full((heads,), -math.inf).double()
    group = heads // keys.shape[1]
    keys = keys.double().repeat_interleave(group, dim=1)
    values = values.double().repeat_interleave(group, dim=1)
    scores = softmax_scale * torch.einsum("hd,nhd->hn", q.double(), keys)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    lse = torch.logsumexp(scores, dim=1)
    weights = torch.exp(scores - lse[:, None])
    return torch.einsum("hn,nhd->hd", weights, values), lse


def visible_keys(position: int, num_keys: int, masking: Masking = CAUSAL) -> list[int]:
    """The keys that a query at a position sees: less than window away, within its own chunk."""
    window, chunk = masking.window, masking.chunk
    return [
        key
        for key in range(num_keys)
        if (not masking.causal or key <= position)
        and (window is None or abs(position - key) < window)
        and (chunk is None or key // chunk == position // chunk)
    ]


def empty_result(tokens: int, heads: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What rows without any key hold: out 0, lse -inf."""
    return torch.zeros(tokens, heads, width).double(), torch.full((tokens, heads), -math.inf).double()
