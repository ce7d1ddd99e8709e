"""The ranks of a running model: who they are, and what its modules say to each other in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel

from hal.common.contract.errors import InputError
from hal.common.contract.parallel import Parallel
from hal.config import LayerShape, ModelShape

from .errors import CheckpointError
from .hollow import read_linear
from .interface import AttentionCall, Binding
from .sharding import AttentionShare, Join, Sharding, Vocabulary
from .slices import Part

INITIALISED = "_is_hf_initialized"
SHARE = "_hal_share"
"""Attribute of an attention module that holds which heads are this rank's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A rank's place and its groups: of those that divide the heads, and of those that divide the tokens."""

    parallel: Parallel
    tensor: Any = None
    context: Any = None
    everyone: Any = None

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that speaks for all."""
        return not self.parallel.tp_rank and not self.parallel.dcp_rank

    @property
    def count(self) -> int:
        """How many ranks run the model, this one included."""
        return 1 if self.everyone is None else dist.get_world_size(self.everyone)

    def smallest(self, number: int, device: torch.device) -> int:
        """The smallest of all ranks' numbers."""
        if self.everyone is None:
            return number
        told = torch.tensor(number, dtype=torch.int64, device=device)
        dist.all_reduce(told, op=dist.ReduceOp.MIN, group=self.everyone)
        return int(told)


def join_ranks(parallel: Parallel | None, group: Any) -> Ranks:
    """The groups of this rank, all made from one: of tp ranks, or of tp * dcp where those of one DCP group share their heads.

    Without a group torch.distributed's own is taken, if the ranks asked for need one. InputError where the group has another
    number of ranks, or counts them in another order: dcp ranks in a row share the tokens.
    """
    if parallel is None and group is None:
        return Ranks(parallel=Parallel())
    if parallel is not None and parallel.tp * parallel.dcp == 1 and group is None:
        return Ranks(parallel=parallel)
    if not dist.is_available() or not dist.is_initialized():
        raise InputError(
            f"parallel asks for tp={getattr(parallel, 'tp', '?')}, dcp={getattr(parallel, 'dcp', '?')} and torch.distributed is "
            "not initialised; start the ranks with torchrun and call torch.distributed.init_process_group() first"
        )
    group = dist.group.WORLD if group is None else group
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise InputError("this process is not in the group that it was given")
    parallel = Parallel(tp=size, tp_rank=rank) if parallel is None else parallel
    if size not in (parallel.tp, parallel.tp * parallel.dcp) or (size == parallel.tp and size % parallel.dcp):
        raise InputError(
            f"the group has {size} ranks and parallel asks for tp={parallel.tp}, dcp={parallel.dcp}; expected tp ranks, a "
            f"multiple of dcp, or tp * dcp of them"
        )
    divides_heads = size == parallel.tp
    expected = replace(parallel, tp_rank=rank if divides_heads else rank // parallel.dcp, dcp_rank=rank % parallel.dcp)
    if parallel != expected:
        raise InputError(f"rank {rank} of the group is planned as {parallel}; expected {expected}")
    ranks = dist.get_process_group_ranks(group)
    first = rank - parallel.dcp_rank
    return Ranks(
        parallel=parallel,
        tensor=group if divides_heads else _subgroup(ranks[parallel.dcp_rank :: parallel.dcp], parallel.tp),
        context=_subgroup(ranks[first : first + parallel.dcp], parallel.dcp),
        everyone=group,
    )


def _subgroup(ranks: list[int], size: int) -> Any:
    return dist.new_group(ranks, use_local_synchronization=True) if size > 1 else None


@contextmanager
def failing_together(group: Any) -> Iterator[None]:
    """What one rank raises within the block ends it on every rank, so that none waits for another that has stopped."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        if group is None:
            raise
        error = raised
    if group is None:
        return
    told: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, None if error is None else f"{type(error).__name__}: {error}", group=group)
    if error is not None:
        raise error
    failed = next((rank for rank, words in enumerate(told) if words is not None), None)
    if failed is not None:
        raise CheckpointError(f"rank {failed} could not load its part, so no rank goes on: {told[failed]}")


def rank_shape(shape: ModelShape, parallel: Parallel) -> ModelShape:
    """The shape that attention sees on one rank: its own heads, everything else as it is."""
    if parallel.tp == 1:
        return shape
    return replace(shape, layers=tuple(_rank_layer(layer, parallel) for layer in shape.layers))


def _rank_layer(layer: LayerShape, parallel: Parallel) -> LayerShape:
    num_heads = layer.num_heads // parallel.tp
    if layer.kind == "mla":
        return replace(layer, num_heads=num_heads, num_kv_heads=num_heads)
    return replace(layer, num_heads=num_heads, num_kv_heads=max(min(layer.num_kv_heads, 1), layer.num_kv_heads // parallel.tp))


def shrink(module: PreTrainedModel, sharding: Sharding) -> None:
    """Give every divided parameter of a meta module this rank's shape, still without data."""
    for name, part in sharding.slices.parts.items():
        set_data(module, name, torch.empty(part.shape(module.get_parameter(name).shape), device="meta"))
    for name in {name.rpartition(".")[0] for name in sharding.slices.parts}:
        _tell_widths(module.get_submodule(name))


def set_data(module: nn.Module, name: str, data: torch.Tensor) -> None:
    """Put a tensor, of the parameter's type, where the parameter of this name is."""
    path, _, own = name.rpartition(".")
    before = module.get_parameter(name)
    after = nn.Parameter(data.to(before.dtype), requires_grad=before.requires_grad)
    # What has no such mark, transformers draws at random when it finishes loading.
    if getattr(before, INITIALISED, False):
        setattr(after, INITIALISED, True)
    module.get_submodule(path)._parameters[own] = after


def _tell_widths(child: Any) -> None:
    sizes = read_linear(child)
    if isinstance(child, nn.Embedding):
        child.num_embeddings, child.padding_idx = child.weight.shape[0], None
    elif sizes is not None and isinstance(child, nn.Linear):
        child.in_features, child.out_features = sizes.inputs, sizes.outputs
    elif sizes is not None:
        child.nx, child.nf = sizes.inputs, sizes.outputs


def connect(module: PreTrainedModel, sharding: Sharding, group: Any) -> None:
    """Make a module whose parameters are this rank's part compute what the whole one does, with the group's other ranks."""
    for name, join in sharding.joins.items():
        _connect_linear(module.get_submodule(name), join, group)
    for name, share in sharding.attention.items():
        setattr(module.get_submodule(name), SHARE, (share, group))
    if sharding.embedding is not None:
        name, vocabulary = sharding.embedding
        _connect_embedding(module.get_submodule(name), vocabulary, group)
    if sharding.head is not None:
        name, vocabulary = sharding.head
        most = -(-vocabulary.size // sharding.parallel.tp)
        module.get_submodule(name).register_forward_hook(_gathering(vocabulary, most, group))


def _connect_linear(child: nn.Module, join: Join, group: Any) -> None:
    if join.select is not None:
        part = join.select
        child.register_forward_pre_hook(lambda _module, args: (_pick(args[0], part), *args[1:]))
    if join.spread is not None:
        spread = join.spread
        child.register_forward_hook(lambda _module, _args, output: _place(output, spread))
    if join.sums:
        child.register_forward_hook(lambda _module, _args, output: _sum(output, group))


def _connect_embedding(child: nn.Module, vocabulary: Vocabulary, group: Any) -> None:
    own, look_up = vocabulary.own, child.forward

    def forward(input_ids: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        elsewhere = (input_ids < own.start) | (input_ids >= own.stop)
        rows: torch.Tensor = look_up((input_ids - own.start).masked_fill(elsewhere, 0), *args, **keywords)
        return _sum(rows.masked_fill(elsewhere.unsqueeze(-1), 0), group)

    child.forward = forward


def _gathering(vocabulary: Vocabulary, most: int, group: Any) -> Callable[..., torch.Tensor]:
    def gather(_module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        padded = nn.functional.pad(output, (0, most - output.shape[-1]))
        return _gather(padded, group, dim=-1)[..., : vocabulary.size]

    return gather


def _pick(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    return torch.cat([tensor[..., start:stop] for start, stop in part.runs], dim=-1)


def _place(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    placed = tensor.new_zeros((*tensor.shape[:-1], part.size))
    first = 0
    for start, stop in part.runs:
        placed[..., start:stop] = tensor[..., first : first + stop - start]
        first += stop - start
    return placed


def _sum(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    total = tensor.contiguous()
    dist.all_reduce(total, group=group)
    return total


def _gather(tensor: torch.Tensor, group: Any, dim: int) -> torch.Tensor:
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim=dim)


@dataclass(frozen=True, slots=True)
class RankBinding:
    """Serves one module with this rank's heads, whether the module makes those alone or all of them."""

    inner: Binding
    share: AttentionShare
    group: Any

    def attend(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """See interface.Binding."""
        heads = self.share.heads
        if not self.share.is_local:
            query = query[:, heads.queries.start : heads.queries.stop]
            if key.shape[1] == heads.num_kv:
                key, value = key[:, heads.kv.start : heads.kv.stop], value[:, heads.kv.start : heads.kv.stop]
        own = {
            name: given[heads.queries.start : heads.queries.stop] if _is_per_head(name, given, heads.num_queries) else given
            for name, given in call.keywords.items()
        }
        out = self.inner.attend(module, query, key, value, AttentionCall(call.mask, call.scaling, call.dropout, own))
        if self.share.is_local:
            return out
        if self.share.gathers:
            return _gather(out, self.group, dim=2)
        whole = out.new_zeros((*out.shape[:2], heads.num_queries, out.shape[3]))
        whole[:, :, heads.queries.start : heads.queries.stop] = out
        return whole


SINKS = ("s_aux", "sinks")


def _is_per_head(name: str, given: Any, num_heads: int) -> bool:
    return name in SINKS and isinstance(given, torch.Tensor) and given.shape == (num_heads,)


def shared(module: nn.Module, binding: Binding) -> Binding:
    """The binding as this rank uses it."""
    known = module.__dict__.get(SHARE)
    return binding if known is None else RankBinding(binding, *known)
