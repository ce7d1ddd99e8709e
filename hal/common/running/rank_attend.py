"""Attention over pages that DCP ranks share."""

from __future__ import annotations

import torch

from hal.common.contract.masking import Masking, masking_of
from hal.common.contract.step import StepMetadata

from .places import BoundTo, Place
from .ranks import DCPGroup


def attend_shards(
    bound: BoundTo,
    place: Place,
    q: torch.Tensor,
    metadata: StepMetadata,
    sink: torch.Tensor | None,
    out: torch.Tensor,
    ranks: DCPGroup,
) -> None:
    """Write out [tokens, heads, v_head_dim] of q [tokens, heads, head_dim], in the engine's order, over all ranks' keys.

    Two collectives for the whole step: queries before, partial results after.
    """
    if not metadata.phases:
        return
    layer, kernels, order = bound.layer, bound.kernels, metadata.token_order
    sight = masking_of(layer).sight
    # What is seen lies in the ranges of the shares.
    capped = Masking(softcap=layer.softcap)
    queries = ranks.gather_queries(q[: metadata.num_tokens] if order is None else q.index_select(0, order))
    partial = [
        kernels.phases[phase.name].paged_attention(
            queries[phase.tokens],
            place.cache,
            phase.shards[sight][place.group],
            softmax_scale=layer.softmax_scale,
            masking=capped,
            need_lse=True,
        )
        for phase in metadata.phases
    ]
    result, lse = ranks.merge_states(kernels.calls, *(_join(each) for each in zip(*partial, strict=True)))
    if sink is not None:
        result = kernels.calls.apply_sink(result, lse, sink)
    if order is None:
        out[: metadata.num_tokens] = result
    else:
        out.index_copy_(0, order, result.to(out.dtype))


def _join(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
