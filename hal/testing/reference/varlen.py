"""Attention over contiguous keys, one run per request."""

from __future__ import annotations

import torch

from .softmax import attend_keys, empty_result, visible_keys


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_start_loc: torch.Tensor,
    k_start_loc: torch.Tensor,
    *,
    softmax_scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
    selected: torch.Tensor | None = None,
    first_key: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [tokens, heads, v_head_dim] and lse [tokens, heads]; a request's last query is aligned to its last key."""
    q_starts, k_starts = q_start_loc.tolist(), k_start_loc.tolist()
    first_ids = [0] * (len(k_starts) - 1) if first_key is None else first_key.tolist()
    out, lse = empty_result(q.shape[0], q.shape[1], v.shape[2])
    for request, first_id in enumerate(first_ids):
        k_first, k_stop = k_starts[request], k_starts[request + 1]
        keys, values, num_keys = k[k_first:k_stop], v[k_first:k_stop], k_stop - k_first
        q_first, q_stop = q_starts[request], q_starts[request + 1]
        for token in range(q_first, q_stop):
            seen = visible_keys(num_keys - (q_stop - token), num_keys, causal=causal, window=window)
            if selected is not None:
                chosen = set(selected[token].tolist())
                seen = [key for key in seen if first_id + key in chosen]
            out[token], lse[token] = attend_keys(q[token], keys[seen], values[seen], softmax_scale=softmax_scale, softcap=softcap)
    return out, lse
