"""A step's metadata from lengths and tables on the host: look at all of it, then write."""

from __future__ import annotations

import numpy as np

from hal.common.contract.batch import Batch
from hal.common.contract.step import Phase, StepMetadata

from .checks import check_batch, check_writes
from .fill import fill_from_host
from .fill_rows import fill_rows
from .host_step import HostStep, arrange
from .parts import StepParts
from .phase_work import Work
from .placement import place_tokens


def build_from_host(parts: StepParts, batch: Batch, owner: object, at_least: int = 0, *, is_written: bool = True) -> StepMetadata:
    """The metadata of a step; BatchError, with nothing written, for one that the plan or the caches do not allow.

    at_least: lengths are taken to be no less where kernels are chosen by them. is_written: the new tokens will be written to
    the pages that the tables name.
    """
    plan, staging = parts.plan, parts.staging
    step = arrange(batch, parts.decode_len)
    check_batch(batch, step.max_seq_len, plan.limits, parts.rules)
    placement = place_tokens(step, plan.block_size, plan.parallel)
    if is_written:
        check_writes(step, placement, parts.rules)
    parts.begin()
    padded, is_ordered = (step.padded_reqs, step.padded_tokens), step.order is None
    fill_from_host(step, placement, staging.host, parts.rules, plan.parallel)
    if parts.row_rules:
        fill_rows(parts.row_rules, staging.host, plan.block_size, is_ordered, *padded)
    num_reqs, num_tokens, first = step.num_reqs, step.num_tokens, step.num_decodes
    first_token = step.count_decode_tokens()
    decode = _make_phase(parts, "decode", step, slice(0, first), slice(0, first_token), at_least)
    prefill = _make_phase(parts, "prefill", step, slice(first, num_reqs), slice(first_token, num_tokens), at_least)
    longest_query = max([phase.batches[0].max_query_len for phase in (decode, prefill) if phase is not None], default=0)
    longest = (longest_query, max(at_least, step.max_seq_len))
    metadata = parts.assembler.assemble(
        owner, parts.step_id, (num_reqs, num_tokens), padded, first, longest, is_ordered, decode, prefill
    )
    staging.upload()
    return parts.finish(metadata)


def _make_phase(parts: StepParts, name: str, step: HostStep, requests: slice, tokens: slice, at_least: int) -> Phase | None:
    if tokens.start == tokens.stop:
        return None
    queries, lengths = step.query_lens, step.seq_lens
    if step.order is not None:
        queries, lengths = queries[step.order], lengths[step.order]
    queries, lengths = queries[requests], lengths[requests]
    longest_query = 1 if step.is_single else int(np.maximum.reduce(queries))
    longest = step.max_seq_len if len(lengths) == step.num_reqs else int(np.maximum.reduce(lengths))
    planner = parts.planner
    work = planner.cut(name, queries.tolist(), lengths.tolist(), at_least) if planner.needs_lengths else Work({}, {})
    return parts.assembler.phase(
        name,
        requests,
        tokens,
        (longest_query, max(at_least, longest)),
        step.order is None,
        work=work,
        may_hide_requests=False,
    )
