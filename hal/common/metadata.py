"""The metadata builder: one class, for every platform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from .batch import Batch
from .chunks import plan_scores
from .kernels import PagedBatch
from .mla_runs import plan_runs
from .staging import Staging
from .step import GroupStep, MLAKind, MLARun, Phase, StepMetadata
from .validation import check_batch
from .workspace import context_rows

if TYPE_CHECKING:
    from .plan import Plan

Ints = npt.NDArray[Any]


class MetadataBuilder:
    """Turns batches into StepMetadata in persistent buffers; everything it knows of the model comes from the plan.

    can_mask: the varlen kernel takes an explicit choice of keys, so that a pruned prefill may be decompressed.
    """

    def __init__(self, plan: Plan, num_blocks: int, torch_device: str, can_mask: bool = False) -> None:
        self.plan = plan
        self.num_blocks = num_blocks
        self.step_id = 0
        self._can_mask = can_mask
        self._kinds = _mla_kinds(plan)
        topks = {layer.indexer.topk for layer in plan.shape.layers if layer.indexer is not None}
        self._topks = tuple(sorted(topks))
        self._num_groups = max(1, len(plan.groups))
        self._cursor = 0
        self._staging = Staging(self._regions(), torch_device)

    def build(self, batch: Batch) -> StepMetadata:
        """The metadata of a step; BatchError, with nothing written, for a batch that the plan or the caches do not allow."""
        plan = self.plan
        check_batch(batch, plan.limits, plan.block_size, self.num_blocks, self._num_groups)
        self.step_id += 1
        decodes = batch.decodes(1 + plan.num_spec_tokens)
        num_decodes = int(decodes.sum())
        is_ordered = bool(decodes[:num_decodes].all())
        order = None if is_ordered else np.argsort(~decodes, kind="stable")
        self._fill_engine_order(batch)
        self._fill_execution_order(batch, order, num_decodes)
        self._cursor = 0
        metadata = self._assemble(batch, order, num_decodes)
        self._staging.upload()
        return metadata

    def build_for_capture(self, num_reqs: int, num_tokens: int) -> StepMetadata:
        """The metadata of a made-up step of this size, lengths spread evenly, for capturing a graph or warming up."""
        if num_reqs < 1 or num_tokens < num_reqs:
            raise ValueError(f"cannot spread {num_tokens} tokens over {num_reqs} requests; each needs at least one")
        query_lens = np.full(num_reqs, num_tokens // num_reqs)
        query_lens[: num_tokens % num_reqs] += 1
        pages = -(-int(query_lens.max()) // self.plan.block_size)
        return self.build(Batch(query_lens, query_lens, np.zeros((num_reqs, pages), np.int32)))

    def _regions(self) -> dict[str, tuple[tuple[int, ...], str]]:
        limits, groups = self.plan.limits, self._num_groups
        requests, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        width = self.plan.block_table_width
        return {
            "positions": ((tokens,), "int64"),
            "token_order": ((tokens,), "int64"),
            "slots": ((groups, tokens), "int64"),
            "req_id": ((tokens,), "int32"),
            "phase_req_id": ((tokens,), "int32"),
            "key_bounds": ((tokens,), "int32"),
            "starts": ((requests + 1,), "int32"),
            "seq_lens": ((requests,), "int32"),
            "decode_starts": ((requests + 1,), "int32"),
            "prefill_starts": ((requests + 1,), "int32"),
            "runs": ((sum(self._run_numbers(kind) for kind in self._kinds),), "int32"),
            "ordered_lens": ((requests,), "int32"),
            "tables": ((groups, requests, width), "int32"),
            "ordered_tables": ((groups, requests, width), "int32"),
        }

    def _run_numbers(self, kind: MLAKind) -> int:
        """The most numbers that one kind's runs place: a run has two per request, a chunk three per request that it covers."""
        limits = self.plan.limits
        requests = limits.max_num_seqs
        least_rows = max(1, self._context_rows(kind) - self.plan.block_size)
        chunks = -(-requests * limits.max_model_len // least_rows)
        return 3 * requests + 3 * 2 * (requests + chunks) + 2 * chunks

    def _context_rows(self, kind: MLAKind) -> int:
        return context_rows(self.plan.limits, self.plan.block_size, self.plan.parallel, kind.topk)

    def _place(self, numbers: Sequence[int]) -> torch.Tensor:
        span = slice(self._cursor, self._cursor + len(numbers))
        self._staging.host["runs"][span] = numbers
        self._cursor = span.stop
        return self._staging.device["runs"][span]

    def _fill_engine_order(self, batch: Batch) -> None:
        host, block_size = self._staging.host, self.plan.block_size
        num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
        padded_reqs, padded_tokens = _padded(batch)
        starts = host["starts"]
        starts[0] = 0
        np.cumsum(batch.query_lens, out=starts[1 : num_reqs + 1])
        starts[num_reqs + 1 : padded_reqs + 1] = num_tokens
        host["seq_lens"][:num_reqs] = batch.seq_lens
        host["seq_lens"][num_reqs:padded_reqs] = 0
        req_id, positions = host["req_id"], host["positions"]
        if num_tokens:
            req_id[:num_tokens] = np.repeat(np.arange(num_reqs, dtype=np.int32), batch.query_lens)
            # A token's position is its index in the step moved by where its request's new tokens begin.
            shift = batch.seq_lens - batch.query_lens - starts[:num_reqs]
            np.add(np.arange(num_tokens), shift[req_id[:num_tokens]], out=positions[:num_tokens])
        req_id[num_tokens:padded_tokens] = 0
        positions[num_tokens:padded_tokens] = 0
        page, offset = np.divmod(positions[:num_tokens], block_size)
        for group in range(self._num_groups):
            table = batch.block_tables[group if len(batch.block_tables) > 1 else 0]
            columns = min(table.shape[1], self.plan.block_table_width)
            host["tables"][group, :num_reqs, :columns] = table[:, :columns]
            host["tables"][group, num_reqs:padded_reqs] = 0
            slots = host["slots"][group]
            slots[:num_tokens] = table[req_id[:num_tokens], page].astype(np.int64) * block_size + offset
            slots[num_tokens:padded_tokens] = -1

    def _fill_execution_order(self, batch: Batch, order: Ints | None, num_decodes: int) -> None:
        host = self._staging.host
        num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
        query_lens = batch.query_lens if order is None else batch.query_lens[order]
        starts = host["starts"][: num_reqs + 1]
        if order is None:
            ordered_starts = starts
            host["key_bounds"][:num_tokens] = host["positions"][:num_tokens] + 1
        else:
            ordered_starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
            source = starts[:-1][order] - ordered_starts[:-1]
            token_order = host["token_order"][:num_tokens]
            np.add(np.arange(num_tokens), np.repeat(source, query_lens), out=token_order)
            host["key_bounds"][:num_tokens] = host["positions"][token_order] + 1
            host["ordered_lens"][:num_reqs] = batch.seq_lens[order]
            host["ordered_tables"][:, :num_reqs] = host["tables"][:, order]
        first = int(ordered_starts[num_decodes])
        host["decode_starts"][: num_decodes + 1] = ordered_starts[: num_decodes + 1]
        host["prefill_starts"][: num_reqs - num_decodes + 1] = ordered_starts[num_decodes:] - first
        req_id = np.repeat(np.arange(num_reqs, dtype=np.int32), query_lens)
        req_id[first:] -= num_decodes
        host["phase_req_id"][:num_tokens] = req_id

    def _assemble(self, batch: Batch, order: Ints | None, num_decodes: int) -> StepMetadata:
        device = self._staging.device
        num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
        padded_reqs, padded_tokens = _padded(batch)
        query_lens, seq_lens = batch.query_lens, batch.seq_lens
        max_query_len, max_seq_len = int(query_lens.max(initial=0)), int(seq_lens.max(initial=0))
        starts, lens = device["starts"][: padded_reqs + 1], device["seq_lens"][:padded_reqs]
        groups = tuple(
            GroupStep(
                batch=PagedBatch(starts, lens, device["tables"][group, :padded_reqs], max_query_len, max_seq_len, num_decodes),
                slot_mapping=device["slots"][group, :padded_tokens],
            )
            for group in range(self._num_groups)
        )
        if order is not None:
            query_lens, seq_lens = query_lens[order], seq_lens[order]
        queries, lengths = query_lens.tolist(), seq_lens.tolist()
        return StepMetadata(
            step_id=self.step_id,
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            num_tokens_padded=padded_tokens,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            query_start_loc=starts,
            seq_lens=lens,
            positions=device["positions"][:padded_tokens],
            req_id_per_token=device["req_id"][:padded_tokens],
            groups=groups,
            token_order=None if order is None else device["token_order"][:num_tokens],
            decode=self._phase(queries, lengths, slice(0, num_decodes), 0, order is None, "decode_starts"),
            prefill=self._phase(
                queries, lengths, slice(num_decodes, num_reqs), sum(queries[:num_decodes]), order is None, "prefill_starts"
            ),
        )

    def _phase(
        self,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        requests: slice,
        first_token: int,
        is_ordered: bool,
        starts: str,
    ) -> Phase | None:
        queries, lengths = query_lens[requests], seq_lens[requests]
        num_tokens = sum(queries)
        if not num_tokens:
            return None
        device, plan = self._staging.device, self.plan
        lens = device["seq_lens" if is_ordered else "ordered_lens"][requests]
        tables = device["tables" if is_ordered else "ordered_tables"][:, requests]
        tokens = slice(first_token, first_token + num_tokens)
        max_query_len, max_seq_len = max(queries), max(lengths)
        is_decode = starts == "decode_starts"
        starts_loc = device[starts][: len(queries) + 1]
        max_scores = plan.limits.max_logits_bytes // 4
        return Phase(
            name="decode" if is_decode else "prefill",
            requests=requests,
            tokens=tokens,
            batches=tuple(
                PagedBatch(starts_loc, lens, table, max_query_len, max_seq_len, len(queries) if is_decode else 0)
                for table in tables
            ),
            req_id=device["phase_req_id"][tokens],
            key_bounds=device["key_bounds"][tokens],
            max_seq_len=max_seq_len,
            chunks={topk: plan_scores(queries, lengths, topk, max_scores) for topk in self._topks},
            runs={} if is_decode else {kind: self._runs(kind, queries, lengths) for kind in self._kinds},
        )

    def _runs(self, kind: MLAKind, query_lens: Sequence[int], seq_lens: Sequence[int]) -> tuple[MLARun, ...]:
        return plan_runs(
            kind,
            query_lens,
            seq_lens,
            can_mask=self._can_mask,
            max_rows=self._context_rows(kind),
            alignment=self.plan.block_size,
            place=self._place,
        )


def _padded(batch: Batch) -> tuple[int, int]:
    requests = batch.num_reqs if batch.num_reqs_padded is None else batch.num_reqs_padded
    tokens = batch.num_tokens if batch.num_tokens_padded is None else batch.num_tokens_padded
    return requests, tokens


def _mla_kinds(plan: Plan) -> tuple[MLAKind, ...]:
    kinds = {
        MLAKind(mla=layer.mla, topk=layer.indexer.topk if layer.indexer is not None else None): None
        for layer in plan.shape.layers
        if layer.mla is not None
    }
    return tuple(kinds)
