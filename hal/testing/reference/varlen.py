"""Attention over contiguous keys, one run per request."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import VarlenBatch
from hal.common.contract.masking import CAUSAL, Masking

from .softmax import attend_keys, empty_result, visible_keys


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: VarlenBatch,
    *,
    softmax_scale: float,
    masking: Masking = CAUSAL,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [tokens, heads, v_head_dim] and lse [tokens, heads]; a request's last query is aligned to its last key."""
    q_starts, k_starts = batch.q_start_loc.tolist(), batch.k_start_loc.tolist()
    first_ids = [0] * (len(k_starts) - 1) if batch.first_key is None else batch.first_key.tolist()
    out, lse = empty_result(q.shape[0], q.shape[1], v.shape[2])
    for request, first_id in enumerate(first_ids):
        k_first, k_stop = k_starts[request], k_starts[request + 1]
        keys, values, num_keys = k[k_first:k_stop], v[k_first:k_stop], k_stop - k_first
        q_first, q_stop = q_starts[request], q_starts[request + 1]
        for token in range(q_first, q_stop):
            seen = visible_keys(num_keys - (q_stop - token), num_keys, masking)
            if batch.selected is not None:
                chosen = set(batch.selected[token].tolist())
                seen = [key for key in seen if first_id + key in chosen]
            out[token], lse[token] = attend_keys(
                q[token], keys[seen], values[seen], softmax_scale=softmax_scale, softcap=masking.softcap
            )
    return out, lse
