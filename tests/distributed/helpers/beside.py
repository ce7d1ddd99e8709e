"""An engine whose attention is one rank of a group, given whole inputs and held beside a single rank at every call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import hal
from hal.config import ModelShape
from tests.attention.helpers import oracle
from tests.attention.helpers.engine import Engine


class Beside:
    """Looks like an Attention that holds every head: slices what is handed over, gathers what comes back, compares.

    heads: this rank's place among the ranks of `around`, between which query heads are divided; (0, 1) where all have all.
    """

    def __init__(
        self, shared: hal.Attention, single: hal.Attention, heads: tuple[int, int], around: Any, known: str | None
    ) -> None:
        self.shared, self.single = shared, single
        self.plan, self.pools, self.caches = shared.plan, shared.pools, shared.caches
        self._heads, self._around, self._known = heads, around, known
        self._beside: Any = None

    @property
    def pages(self) -> Any:
        return self.shared.pages

    def build(self, batch: hal.Batch) -> hal.StepMetadata:
        """Both metadata; the engine's batch is handed to the ranks from device tensors where a case says so."""
        self._beside = self.single.build(batch)
        return self.shared.build(batch if self._known is None else on_device(batch, self._known))

    def bind_weights(self, layer_id: int, w_uk: torch.Tensor, w_uv: torch.Tensor) -> None:
        self.single.bind_weights(layer_id, w_uk, w_uv)
        self.shared.bind_weights(layer_id, self._own(w_uk, 0), self._own(w_uv, 0))

    def attend(self, layer_id: int, q, k, v, metadata, sink=None) -> torch.Tensor:
        mine = None if sink is None else self._own(sink, 0)
        given = (None, None) if k is None else (self._own_kv(k), self._own_kv(v))
        out = self.shared.attend(layer_id, self._own(q, 1), *given, metadata, sink=mine)
        return self._compare(out, self.single.attend(layer_id, q, k, v, self._beside, sink=sink))

    def attend_mla(self, layer_id: int, q_nope, q_rope, latent, k_rope, metadata, *, sink=None, **arguments) -> torch.Tensor:
        mine = None if sink is None else self._own(sink, 0)
        own = self._own(q_nope, 1), self._own(q_rope, 1)
        out = self.shared.attend_mla(layer_id, *own, latent, k_rope, metadata, sink=mine, **arguments)
        whole = self.single.attend_mla(layer_id, q_nope, q_rope, latent, k_rope, self._beside, sink=sink, **arguments)
        return self._compare(out, whole)

    def _own(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        rank, ranks = self._heads
        return tensor.chunk(ranks, dim)[rank]

    def _own_kv(self, tensor: torch.Tensor) -> torch.Tensor:
        """The KV heads of this tensor-parallel rank: a share of them, or one that several ranks keep."""
        tp, rank, heads = self.plan.parallel.tp, self.plan.parallel.tp_rank, tensor.shape[1]
        return tensor.chunk(tp, 1)[rank] if heads >= tp else tensor[:, rank * heads // tp].unsqueeze(1)

    def _compare(self, out: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        ranks = dist.get_world_size(self._around)
        parts = [torch.empty_like(out) for _ in range(ranks)]
        dist.all_gather(parts, out.contiguous(), group=self._around)
        if self._heads[1] == 1:
            for part in parts:
                assert torch.equal(part, out), "ranks that have the same heads must agree bit for bit"
            whole = out
        else:
            whole = torch.cat(parts, 1)
        oracle.expect_close(whole, expected.double(), str(out.dtype).removeprefix("torch."))
        return whole


class RankEngine(Engine):
    """An Engine on one rank. around: the ranks that heads are divided over. known: what the host knows of device batches."""

    def __init__(
        self, shape: ModelShape, parallel: hal.Parallel, *, group: Any, around: Any, known: str | None = None, **arguments: Any
    ) -> None:
        self._group, self._around, self._known = group, around, known
        super().__init__(shape, parallel=parallel, **arguments)

    def open(self, num_blocks: Any) -> Any:
        """This rank's attention beside a single one, whose pages are as many tokens as a column of the ranks' tables."""
        plan, parallel = self.plan, self.plan.parallel
        limits = replace(plan.limits, block_size=plan.tokens_per_page)
        layout = next(selection.kv_layout for selection in plan.selections if selection is not None)
        single = hal.plan(
            self.shape, plan.device, limits=limits, dtype=plan.dtype, kv_layout=layout, num_spec_tokens=plan.num_spec_tokens
        )
        heads = (parallel.tp_rank, parallel.tp)
        return Beside(plan.open(num_blocks, self._group), single.open(num_blocks), heads, self._around, self._known)


def on_device(batch: hal.Batch, known: str) -> Any:
    """The device form of a batch whose decodes come first."""
    queries, lengths = batch.query_lens.tolist(), batch.seq_lens.tolist()
    hints = {"query_lens": queries, "seq_lens_upper": lengths} if known == "lengths" else {}
    return hal.Batch.from_device(
        torch.tensor([0, *queries]).cumsum(0).int(),
        torch.tensor(lengths, dtype=torch.int32),
        tuple(torch.from_numpy(table) for table in batch.block_tables),
        num_tokens=sum(queries),
        max_query_len=max(queries, default=0),
        max_seq_len=max(lengths, default=0),
        **hints,
    )
