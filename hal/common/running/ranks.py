"""The ranks that share a plan's tokens, and what they tell each other: who they are, queries, results, candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from hal.common.contract.backend import Backend
from hal.common.contract.errors import BackendError, InputError
from hal.common.contract.parallel import Parallel

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan

States = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DCPGroup:
    """A DCP group as one of its ranks sees it; every call is one collective that all ranks make at the same time.

    divides_heads: each rank brings query heads of its own, its part of tensor parallelism; otherwise all have the same.
    """

    process_group: Any
    parallel: Parallel
    divides_heads: bool

    def gather_queries(self, q: torch.Tensor) -> torch.Tensor:
        """Queries [tokens, every rank's heads, width] in rank order of this rank's [tokens, heads, width].

        Each rank takes in (dcp - 1) * tokens * heads * width elements; nothing moves where the ranks' heads are the same.
        """
        if not self.divides_heads:
            return q
        return self.gather(q).movedim(0, 1).flatten(1, 2)

    def exchange_states(self, out: torch.Tensor, lse: torch.Tensor) -> States:
        """Every rank's partial results for this rank's heads, in rank order: [dcp, tokens, heads, v] and [dcp, tokens, heads].

        Each rank takes in (dcp - 1) * tokens * heads of its own, with v elements of out's type and one LSE each; both travel
        in one tensor, as bits.
        """
        width = out.shape[-1]
        packed = torch.cat([out, lse.contiguous().unsqueeze(-1).view(out.dtype)], dim=-1)
        if self.divides_heads:
            parts = packed.unflatten(1, (self.parallel.dcp, -1)).movedim(1, 0).contiguous()
            received = torch.empty_like(parts)
            torch.distributed.all_to_all_single(received, parts, group=self.process_group)
        else:
            received = self.gather(packed)
        logs = received[..., width:].contiguous().view(lse.dtype).squeeze(-1)
        return received[..., :width], logs

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor [dcp, *shape], in rank order; all have one shape."""
        ranks = self.parallel.dcp
        gathered = tensor.new_empty((ranks * tensor.shape[0], *tensor.shape[1:]))
        # The name since torch 2.13, and the one before.
        call = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor
        call(gathered, tensor.contiguous(), group=self.process_group)
        return gathered.view(ranks, *tensor.shape)

    def merge_states(self, calls: Backend, out: torch.Tensor, lse: torch.Tensor) -> States:
        """This rank's heads over all ranks' keys, merged in rank order: out [tokens, heads, v] and lse, both in the LSE's type.

        out and lse are this rank's partial results for every head that gather_queries gave. A rank without keys adds nothing.
        """
        outs, logs = self.exchange_states(out, lse)
        merged: States = outs[0].to(logs.dtype), logs[0]
        for rank in range(1, self.parallel.dcp):
            merged = calls.merge_states(*merged, outs[rank].to(logs.dtype), logs[rank])
        return merged


def join_ranks(plan: Plan, process_group: Any) -> DCPGroup | None:
    """The plan's DCP group, None for one rank; InputError on every rank where they do not belong together.

    The ranks compare notes in one collective of three numbers each, before anything is allocated.
    """
    parallel = plan.parallel
    if parallel.dcp == 1:
        if process_group is not None:
            raise InputError("a DCP group was given and the plan has dcp=1; plan with Parallel(dcp=...) or leave the group out")
        return None
    _check_size(parallel, process_group)
    device = plan.device.torch_device
    told = torch.tensor([[parallel.dcp_rank, parallel.tp_rank, _fingerprint(plan)]], dtype=torch.int64, device=device)
    joined = DCPGroup(process_group=process_group, parallel=parallel, divides_heads=False)
    ranks, tp_ranks, prints = joined.gather(told).squeeze(1).T.tolist()
    if ranks != list(range(parallel.dcp)):
        raise InputError(
            f"the ranks of the DCP group were planned as dcp_rank {ranks}; rank i of the group must plan with dcp_rank=i"
        )
    if len(set(prints)) > 1:
        other = next(rank for rank, each in enumerate(prints) if each != prints[0])
        raise InputError(
            f"ranks 0 and {other} of the DCP group plan for different models, limits, pages or types; only their ranks may differ"
        )
    if len(set(tp_ranks)) == 1:
        return joined
    first = tp_ranks[0]
    if first % parallel.dcp or tp_ranks != list(range(first, first + parallel.dcp)):
        raise InputError(
            f"the ranks of the DCP group have tp_rank {tp_ranks}; expected the same one, or {parallel.dcp} in a row from a "
            f"multiple of {parallel.dcp}"
        )
    _check_kv_heads(plan)
    return replace(joined, divides_heads=True)


def _check_size(parallel: Parallel, process_group: Any) -> None:
    if not torch.distributed.is_available():
        raise BackendError(
            f"the plan has dcp={parallel.dcp} and this torch was built without torch.distributed; use another build"
        )
    if process_group is None:
        raise InputError(f"the plan has dcp={parallel.dcp} and no DCP group was given; pass group=, a torch process group")
    if not isinstance(process_group, torch.distributed.ProcessGroup):
        raise InputError(f"group is a {type(process_group).__name__}; expected a torch process group of {parallel.dcp} ranks")
    size = torch.distributed.get_world_size(process_group)
    if size != parallel.dcp:
        raise InputError(f"the DCP group has {size} ranks and the plan has dcp={parallel.dcp}; they must be as many")


def _check_kv_heads(plan: Plan) -> None:
    """Gathered query heads meet this rank's KV heads, so ranks of a group that divides heads must keep the same ones."""
    parallel = plan.parallel
    for layer in plan.shape.layers:
        sharing = parallel.tp // max(1, layer.num_kv_heads)
        if layer.kind == "attention" and (not sharing or sharing % parallel.dcp):
            raise InputError(
                f"layer {layer.layer_id} has {layer.num_kv_heads} KV heads, which tp={parallel.tp} puts on different ranks of "
                f"one DCP group of {parallel.dcp}; a group's ranks must keep the same KV heads, so tp must be a multiple of "
                f"{layer.num_kv_heads * parallel.dcp}, or every rank of the group must have the same tp_rank"
            )


def _fingerprint(plan: Plan) -> int:
    """A number that ranks share exactly when all they plan with is the same, their own ranks aside."""
    shared = replace(plan.parallel, tp_rank=0, dcp_rank=0)
    facts = (plan.shape.layers, plan.limits, plan.dtype, plan.block_size, plan.groups, plan.num_spec_tokens, shared)
    return int.from_bytes(sha256(repr(facts).encode()).digest()[:8], "big", signed=True)
