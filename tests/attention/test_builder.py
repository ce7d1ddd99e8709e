"""The metadata builder against the oracle: any batch, any order of requests, any number of tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import hal

from .helpers.batches import BLOCKS, batches
from .helpers.builder_oracle import check_engine_order, check_execution_order, facts_of
from .helpers.shapes import gqa, mla, model, sparse

BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)
GROUPS = model(gqa(0), gqa(1, window=8), gqa(2, num_kv_heads=1))
SPARSE = model(mla(0), sparse(1, topk=4), sparse(2, topk=6))


@pytest.fixture(scope="module", params=[0, 2], ids=["plain", "spec"])
def attention(request: pytest.FixtureRequest) -> hal.Attention:
    """Three cache groups in pages of 4; at most 8 requests, 40 tokens, 64 long."""
    limits = hal.Limits(64, 8, 40, block_size=4)
    return hal.plan(GROUPS, "cpu", limits=limits, dtype="float32", num_spec_tokens=request.param).open(BLOCKS)


@BOUNDED
@given(drawn=batches())
def test_metadata_of_any_batch_is_the_oracles(attention: hal.Attention, drawn: tuple[hal.Batch, list[bool] | None]) -> None:
    batch, flags = drawn
    metadata = attention.build(batch)
    facts = facts_of(batch, 4, 1 + attention.plan.num_spec_tokens, 3, flags)
    check_engine_order(metadata, facts)
    check_execution_order(metadata, facts)
    assert metadata.num_decode_tokens == sum(facts.query_lens[request] for request in facts.members(decode=True))
    assert metadata.num_decode_tokens + metadata.num_prefill_tokens == metadata.num_tokens


@BOUNDED
@given(drawn=batches(), earlier=batches())
def test_nothing_is_left_of_the_step_before(attention: hal.Attention, drawn, earlier) -> None:
    attention.build(earlier[0])
    batch, flags = drawn
    metadata = attention.build(batch)
    facts = facts_of(batch, 4, 1 + attention.plan.num_spec_tokens, 3, flags)
    check_engine_order(metadata, facts)
    check_execution_order(metadata, facts)


@BOUNDED
@given(drawn=batches())
def test_requests_marked_as_decodes_are_short(attention: hal.Attention, drawn) -> None:
    """A paged batch that says its first requests are decodes must put decodes first, whoever reads it."""
    batch, _ = drawn
    metadata = attention.build(batch)
    views = [step.batch for step in metadata.groups] + [paged for phase in metadata.phases for paged in phase.batches]
    for paged in views:
        lengths = paged.query_start_loc.diff()[: paged.num_decodes].tolist()
        assert max(lengths, default=0) <= 1 + attention.plan.num_spec_tokens


@pytest.fixture(scope="module")
def sparse_attention() -> hal.Attention:
    """Two top-k widths; latents and index keys are two cache groups."""
    return hal.plan(SPARSE, "cpu", limits=hal.Limits(64, 8, 40, block_size=4), dtype="float32").open(BLOCKS)


def test_types_are_the_contracts(attention: hal.Attention) -> None:
    metadata = attention.build(hal.Batch([4, 1], [4, 5], [[0, 0], [1, 2]]))
    kinds = {
        torch.int32: [metadata.query_start_loc, metadata.seq_lens, metadata.req_id_per_token, metadata.block_table],
        torch.int64: [metadata.slot_mapping, metadata.positions, metadata.token_order],
    }
    assert all(tensor.dtype == dtype for dtype, tensors in kinds.items() for tensor in tensors)


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.uint32], ids=lambda dtype: dtype.__name__)
def test_any_whole_number_type_will_do(attention: hal.Attention, dtype: type) -> None:
    arrays = [np.array(values, dtype) for values in ([2, 1], [2, 5], [[7, 0], [1, 2]])]
    assert attention.build(hal.Batch(*arrays)).slot_mapping.tolist() == [28, 29, 8]


def test_addresses_are_for_life(attention: hal.Attention) -> None:
    def addresses(metadata: hal.StepMetadata) -> list[int]:
        tensors = [metadata.query_start_loc, metadata.seq_lens, metadata.positions, metadata.req_id_per_token]
        for step in metadata.groups:
            tensors += [step.slot_mapping, step.batch.query_start_loc, step.batch.seq_lens, step.batch.block_table]
        return [tensor.data_ptr() for tensor in tensors]

    first = addresses(attention.build(hal.Batch([3], [9], [[1, 2, 3]])))
    second = addresses(attention.build(hal.Batch([1, 5, 0], [1, 8, 2], [[4, 0], [5, 6], [7, 8]])))
    decodes = addresses(attention.build(hal.Batch([1, 1], [1, 8], [[4, 0], [5, 6]])))
    captured = addresses(attention.build_for_capture(2, 2))
    assert first == second == decodes == captured


def test_the_next_build_overwrites_the_previous_result(attention: hal.Attention) -> None:
    metadata = attention.build(hal.Batch([1], [9], [[1, 2, 3]]))
    attention.build(hal.Batch([1], [3], [[5]]))
    assert metadata.seq_lens.tolist() == [3]


@BOUNDED
@given(drawn=batches(num_groups=2))
def test_a_sparse_plan_scores_what_sees_more_than_topk(sparse_attention: hal.Attention, drawn) -> None:
    batch, flags = drawn
    attention = sparse_attention
    metadata = attention.build(batch)
    facts = facts_of(batch, 4, 1, len(attention.plan.groups), flags)
    check_engine_order(metadata, facts)
    check_execution_order(metadata, facts)
    for phase in metadata.phases:
        bounds = phase.key_bounds.tolist()
        assert set(phase.chunks) == {(4, 1), (6, 1)}
        for (topk, _), chunks in phase.chunks.items():
            scored = {token for chunk in chunks for token in range(chunk.token_start, chunk.token_stop)}
            assert {token for token, bound in enumerate(bounds) if bound > topk} <= scored
            assert all(bounds[token] >= topk for token in scored)


@BOUNDED
@given(drawn=batches(num_groups=2))
def test_runs_cover_every_prefill_once(sparse_attention: hal.Attention, drawn) -> None:
    batch, flags = drawn
    attention = sparse_attention
    metadata = attention.build(batch)
    if metadata.prefill is None:
        return
    facts = facts_of(batch, 4, 1, len(attention.plan.groups), flags)
    members = facts.members(decode=False)
    for runs in metadata.prefill.runs.values():
        assert [request for run in runs for request in range(run.requests.start, run.requests.stop)] == list(range(len(members)))
        for run in runs:
            mine = members[run.requests]
            assert run.q_start_loc.tolist() == np.cumsum([0, *(facts.query_lens[i] for i in mine)]).tolist()
            assert run.context_lens.tolist() == [facts.seq_lens[i] - facts.query_lens[i] for i in mine]
