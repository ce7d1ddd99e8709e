"""Attention over contiguous keys, request by request."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import VarlenBatch
from hal.common.contract.errors import LayoutError
from hal.common.contract.masking import Masking

from .attend import Selected, attend_request, scale_queries
from .checks import check_counts, check_floats, check_integers, check_starts
from .mask import make_mask
from .results import prepare_results


def attend_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: VarlenBatch,
    masking: Masking,
    softmax_scale: float,
    need_lse: bool,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [tokens, heads, v_head_dim] and lse; a request's last query is aligned with its last key."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_floats(name, tensor, 3)
    if k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2] or (q.shape[1] % k.shape[1] if k.shape[1] else q.shape[1]):
        raise LayoutError(
            f"queries {list(q.shape)}, keys {list(k.shape)} and values {list(v.shape)} do not go together: keys and values "
            "need as many tokens and heads, queries the keys' width and a multiple of their heads"
        )
    out, lse = prepare_results(q, v.shape[2], need_lse, out, k=k, v=v)
    _check_batch(q, batch)
    if not q.shape[1]:
        return out, lse
    q_starts, k_starts, mask = batch.q_start_loc.tolist(), batch.k_start_loc.tolist(), make_mask(masking)
    queries = scale_queries(q, k.shape[1], softmax_scale)
    out[: q_starts[0]].zero_()
    out[q_starts[-1] :].zero_()
    first_keys = [0] * (len(q_starts) - 1) if batch.first_key is None else batch.first_key.tolist()
    for i, first in enumerate(first_keys):
        tokens, keys = slice(q_starts[i], q_starts[i + 1]), slice(k_starts[i], k_starts[i + 1])
        if tokens.start == tokens.stop:
            continue
        choice = None if batch.selected is None else Selected(ids=batch.selected[tokens], first_key=first)
        first_position = (keys.stop - keys.start) - (tokens.stop - tokens.start)
        attend_request(
            queries[tokens],
            k[keys],
            v[keys],
            mask,
            first_position,
            masking.softcap,
            out[tokens],
            None if lse is None else lse[tokens],
            choice,
        )
    return out, lse


def _check_batch(q: torch.Tensor, batch: VarlenBatch) -> None:
    selected, first_key = batch.selected, batch.first_key
    requests = max(0, batch.q_start_loc.numel() - 1)
    check_starts("q_start_loc", batch.q_start_loc, requests)
    check_starts("k_start_loc", batch.k_start_loc, requests)
    if selected is not None:
        check_integers("selected", selected, 2)
        check_counts("tokens of q and selected", q=q.shape[0], selected=selected.shape[0])
    if first_key is not None:
        check_integers("first_key", first_key, 1)
        check_counts("requests of q_start_loc and first_key", q_start_loc=requests, first_key=first_key.shape[0])
