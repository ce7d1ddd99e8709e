"""Items 1 and 2 in a step: which tokens a rank writes and where, which of its own keys each query sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hal
from hal.common.backends.registry import find_backend
from hal.common.contract.masking import CAUSAL, Masking, masking_of
from hal.common.contract.parallel import global_position, local_length, local_position, longest_share, owner
from hal.common.stepping.builder import MetadataBuilder
from hal.common.stepping.pages import make_pools
from hal.config import LayerShape
from hal.testing.reference.softmax import visible_keys
from tests.attention.helpers.histories import BOUNDED
from tests.attention.helpers.shapes import gqa, mla, model, sparse
from tests.distributed.helpers.beside import on_device

BLOCK_SIZE, BLOCKS = 12, 400
LAYERS = (
    gqa(0),
    gqa(1, window=5),
    gqa(2, chunk=7),
    gqa(3, window=3, chunk=4),
    gqa(4, causal=False),
    gqa(5, causal=False, window=4),
    mla(6, window=6),
    sparse(7, topk=4),
)
RUNS = st.sampled_from([1, 2, 3, 4, 6, 12])


def builder(parallel: hal.Parallel, **limits: Any) -> MetadataBuilder:
    """The builder of one rank, which needs no other rank."""
    sizes = {"max_model_len": 96, "max_num_seqs": 6, "max_num_batched_tokens": 64} | limits
    limits = hal.Limits(**sizes, block_size=BLOCK_SIZE)
    plan = hal.plan(model(*LAYERS), "cpu", limits=limits, dtype="float32", parallel=parallel)
    return MetadataBuilder(plan, make_pools([BLOCKS] * len(plan.groups), is_single=True), "cpu")


@st.composite
def steps(draw, decodes_first: bool = False) -> tuple[list[int], list[int], np.ndarray]:
    """Query lengths, sequence lengths and pages that no two requests share."""
    lengths = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 80)), min_size=1, max_size=6))
    if decodes_first:
        lengths = sorted((max(1, query), past) for query, past in lengths)
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    table = rng.permutation(BLOCKS)[: len(lengths) * 8].reshape(len(lengths), 8).astype(np.int32)
    return [query for query, _ in lengths], [query + past for query, past in lengths], table


def ranks_of(ranks: int, interleave: int) -> list[hal.Parallel]:
    return [hal.Parallel(dcp=ranks, dcp_rank=rank, interleave=interleave) for rank in range(ranks)]


@BOUNDED
@given(step=steps(), ranks=st.integers(2, 5), interleave=RUNS)
def test_every_token_is_written_once_and_where_it_is_read(step, ranks: int, interleave: int) -> None:
    queries, lengths, table = step
    written: list[int] = []
    for parallel in ranks_of(ranks, interleave):
        metadata = builder(parallel).build(hal.Batch(queries, lengths, table, num_tokens_padded=sum(queries) + 3))
        positions, requests = metadata.positions.tolist(), metadata.req_id_per_token.tolist()
        for token, slot in enumerate(metadata.slot_mapping.tolist()):
            if token >= sum(queries) or owner(positions[token], parallel) != parallel.dcp_rank:
                assert slot == -1
                continue
            index = local_position(positions[token], parallel)
            assert slot == table[requests[token], index // BLOCK_SIZE] * BLOCK_SIZE + index % BLOCK_SIZE
            # A column of the table is one page on each of the ranks.
            assert index // BLOCK_SIZE == positions[token] // (BLOCK_SIZE * ranks)
            written.append(token)
    assert sorted(written) == list(range(sum(queries)))


@BOUNDED
@given(step=steps(), ranks=st.integers(2, 5), interleave=RUNS)
def test_each_query_sees_the_keys_of_its_rule_that_the_rank_stores(step, ranks: int, interleave: int) -> None:
    queries, lengths, table = step
    for parallel in ranks_of(ranks, interleave):
        metadata = builder(parallel).build(hal.Batch(queries, lengths, table))
        assert metadata.local_seq_lens.tolist() == [local_length(length, parallel) for length in lengths]
        for phase in metadata.phases:
            bounds, requests = phase.key_bounds.tolist(), phase.req_id.tolist()
            own = phase.batches[0].seq_lens.tolist()
            for rule, batches in phase.shards.items():
                (batch,) = {id(batch.key_starts): batch for batch in batches}.values()
                assert batch.seq_lens.tolist() == [local_length(length, parallel) for length in own]
                assert max(batch.seq_lens.tolist(), default=0) <= batch.max_seq_len
                for token, bound in enumerate(bounds):
                    seen = visible_keys(bound - 1, own[requests[token]], rule)
                    expected = [local_position(key, parallel) for key in seen if owner(key, parallel) == parallel.dcp_rank]
                    assert list(range(int(batch.key_starts[token]), int(batch.key_stops[token]))) == expected


@BOUNDED
@given(step=steps(decodes_first=True), ranks=st.integers(2, 4), interleave=RUNS, known=st.sampled_from(["bounds", "lengths"]))
def test_device_batches_give_what_host_batches_give(step, ranks: int, interleave: int, known: str) -> None:
    queries, lengths, table = step
    parallel = hal.Parallel(dcp=ranks, dcp_rank=ranks - 1, interleave=interleave)
    batch = hal.Batch(queries, lengths, table)
    host, device = builder(parallel).build(batch), builder(parallel).build(on_device(batch, known))
    for name in ("slot_mapping", "local_seq_lens", "positions"):
        assert torch.equal(getattr(device, name), getattr(host, name)), name
    for rule in (CAUSAL, Masking(window=5), Masking(causal=False)):
        ranges = [
            [torch.cat([getattr(phase.shards[rule][0], name) for phase in each.phases]) for name in ("key_starts", "key_stops")]
            for each in (host, device)
        ]
        assert torch.equal(torch.stack(ranges[0]), torch.stack(ranges[1])), rule


def test_bounds_are_localised_after_they_are_expanded_per_token() -> None:
    metadata = builder(hal.Parallel(dcp=2, dcp_rank=1)).build(hal.Batch([3], [10], [[0, 1]]))
    (batch, *_) = metadata.prefill.shards[CAUSAL]
    assert metadata.prefill.key_bounds.tolist() == [8, 9, 10]
    assert batch.key_stops.tolist() == [4, 4, 5]


def test_padded_tokens_of_a_device_batch_see_nothing() -> None:
    batch = hal.Batch.from_device(
        torch.tensor([0, 1, 2, 2], dtype=torch.int32),
        torch.tensor([30, 7, 0], dtype=torch.int32),
        torch.arange(24, dtype=torch.int32).view(3, 8),
        num_tokens=5,
        max_query_len=1,
        max_seq_len=30,
    )
    metadata = builder(hal.Parallel(dcp=2, interleave=4)).build(batch)
    assert metadata.local_seq_lens.tolist() == [16, 4, 0]
    assert metadata.slot_mapping.tolist()[2:] == [-1, -1, -1]
    for batches in metadata.decode.shards.values():
        assert batches[0].key_starts.tolist()[2:] == batches[0].key_stops.tolist()[2:] == [0, 0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_that_misses_a_page_sees_no_key_of_any_rank(rank: int) -> None:
    table = torch.arange(24, dtype=torch.int32).view(3, 8)
    table[1, 0] = -1
    batch = hal.Batch.from_device(
        torch.tensor([0, 1, 2, 3], dtype=torch.int32),
        torch.tensor([30, 70, 9], dtype=torch.int32),
        table,
        num_tokens=3,
        max_query_len=1,
        max_seq_len=70,
    )
    built = builder(hal.Parallel(dcp=2, dcp_rank=rank, interleave=4))
    metadata = built.build(batch)
    assert built.lost_pages == 1
    assert metadata.seq_lens.tolist() == [30, 0, 9]
    assert metadata.local_seq_lens[1] == 0
    for batches in metadata.decode.shards.values():
        assert [int(batches[0].key_starts[1]), int(batches[0].key_stops[1]), int(batches[0].seq_lens[1])] == [0, 0, 0]


@BOUNDED
@given(first=steps(), second=steps())
def test_what_an_earlier_step_left_is_gone(first, second) -> None:
    kept, parallel = builder(hal.Parallel(dcp=3, dcp_rank=1, interleave=2)), hal.Parallel(dcp=3, dcp_rank=1, interleave=2)
    kept.build(hal.Batch(first[0], first[1], first[2]))
    again = kept.build(hal.Batch(second[0], second[1], second[2], num_reqs_padded=6, num_tokens_padded=64))
    live, tokens = len(second[0]), sum(second[0])
    fresh = builder(parallel).build(hal.Batch(second[0], second[1], second[2]))
    assert again.local_seq_lens.tolist() == fresh.local_seq_lens.tolist() + [0] * (6 - live)
    assert again.slot_mapping.tolist() == fresh.slot_mapping.tolist() + [-1] * (64 - tokens)
    for ours, theirs in zip(again.phases, fresh.phases, strict=True):
        for rule, batches in ours.shards.items():
            assert torch.equal(batches[0].key_starts, theirs.shards[rule][0].key_starts)
            assert torch.equal(batches[0].key_stops, theirs.shards[rule][0].key_stops)


def test_rules_are_those_that_layers_are_asked_by() -> None:
    metadata = builder(hal.Parallel(dcp=2)).build(hal.Batch([1], [1], [[0]]))
    assert set(metadata.decode.shards) == {CAUSAL, *(masking_of(layer).sight for layer in LAYERS if layer.indexer is None)}


def test_a_step_for_capture_may_be_as_long_as_any() -> None:
    parallel = hal.Parallel(dcp=2, dcp_rank=1, interleave=4)
    metadata = builder(parallel).build_for_capture(3, 20)
    assert set(metadata.slot_mapping.tolist()) == {-1}
    for phase in metadata.phases:
        assert {batch.max_seq_len for batches in phase.shards.values() for batch in batches} == {longest_share(96, parallel)}
        assert {chunk.max_seq_len for chunks in phase.chunks.values() for chunk in chunks} <= {longest_share(96, parallel)}


@BOUNDED
@given(index=st.integers(0, 10**6), ranks=st.integers(1, 8), rank=st.integers(0, 7), interleave=st.integers(1, 64))
def test_a_local_index_has_one_position(index: int, ranks: int, rank: int, interleave: int) -> None:
    parallel = hal.Parallel(dcp=ranks, dcp_rank=rank % ranks, interleave=interleave)
    position = global_position(index, parallel)
    assert (owner(position, parallel), local_position(position, parallel)) == (parallel.dcp_rank, index)


@BOUNDED
@given(length=st.integers(0, 10**6), ranks=st.integers(1, 8), interleave=st.integers(1, 64))
def test_the_longest_share_is_some_ranks_and_no_rank_has_more(length: int, ranks: int, interleave: int) -> None:
    shares = [local_length(length, parallel) for parallel in ranks_of(ranks, interleave)]
    assert longest_share(length, hal.Parallel(dcp=ranks, dcp_rank=ranks - 1, interleave=interleave)) == max(shares)


def planned(parallel: hal.Parallel, *layers: LayerShape) -> hal.Plan:
    return hal.plan(model(*layers), "cpu", limits=hal.Limits(1000, 3, 64, block_size=16), dtype="float32", parallel=parallel)


@pytest.mark.parametrize(("ranks", "pages"), [(1, 63), (2, 32), (3, 21), (4, 16)])
def test_sizes_are_a_ranks_share(ranks: int, pages: int) -> None:
    one, plan = planned(hal.Parallel(), gqa()), planned(hal.Parallel(dcp=ranks), gqa())
    assert plan.default_num_blocks() == 3 * pages
    assert plan.page_bytes == one.page_bytes
    assert plan.max_tokens(plan.workspace_bytes + 10 * plan.page_bytes) == 10 * 16 * ranks
    assert plan.block_table_width == -(-pages // 8) * 8


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "words"),
    [([1], [73], r"1 columns.*4 pages of 24"), ([1], [97], "97"), ([1], [25], r"1 columns.*2 pages of 24")],
)
def test_a_table_that_is_too_narrow_is_refused_in_tokens_of_all_ranks(query_lens, seq_lens, words: str) -> None:
    with pytest.raises(hal.BatchError, match=words):
        builder(hal.Parallel(dcp=2)).build(hal.Batch(query_lens, seq_lens, [[0]]))
    builder(hal.Parallel(dcp=2)).build(hal.Batch([1], [24], [[0]]))


def test_a_page_size_that_a_run_does_not_divide_is_refused() -> None:
    with pytest.raises(hal.NoBackend, match="interleave 5"):
        builder(hal.Parallel(dcp=2, interleave=5))


def test_buffers_are_as_large_as_a_ranks_share() -> None:
    layers, limits = (mla(0), sparse(1, topk=4)), hal.Limits(96, 3, 64, block_size=16)
    names = {}
    for parallel in (hal.Parallel(), hal.Parallel(dcp=2), hal.Parallel(tp=3, dcp=3)):
        plan = hal.plan(model(*layers), "cpu", limits=limits, dtype="float32", parallel=parallel)
        names[parallel.dcp] = {buffer.name: buffer.shape for buffer in plan.buffers}
    ours = {"key ranges", "shares", "gathered queries", "partial results", "index candidates"}
    assert ours.isdisjoint(names[1])
    assert names[2].keys() & ours == ours - {"gathered queries"}
    assert {"context", "expanded context"}.isdisjoint(names[2])
    assert names[3]["key ranges"] == (2, 1, 64)
    assert names[3]["gathered queries"] == (3 * 64, 16)
    assert names[3]["partial results"] == (2, 3 * 64, 12 + 1)
    assert names[3]["index candidates"] == (3, 64, 9)


@pytest.mark.parametrize("arch", ["cpu", "sm_90", "gfx942", "pvc"])
def test_what_is_selected_over_ranks_reads_key_ranges_in_every_call(arch: str) -> None:
    """A selection that opening would have to take back is none."""
    device = hal.Device.from_arch(arch)
    for layer in (gqa(), mla(), sparse()):
        request = hal.Request(layer, device, "bfloat16", parallel=hal.Parallel(dcp=2))
        try:
            selection = hal.select(request)
        except hal.NoBackend as error:
            own = {name: reasons for name, reasons in error.rejected.items() if name.startswith(device.platform)}
            assert own
            assert all("dcp" in {reason.code for reason in reasons} or reasons[0].is_environmental for reasons in own.values())
        else:
            for name in selection.providers.values():
                assert find_backend(name).capabilities.key_ranges


@pytest.mark.parametrize("start", [0, 5], ids=["from_0", "from_5"])
def test_padded_tokens_alone_see_no_key_of_any_rank(start: int) -> None:
    built = builder(hal.Parallel(dcp=2, dcp_rank=1))
    built.build(hal.Batch([3], [9], np.zeros((1, 8), np.int32)))
    empty = torch.zeros(0, dtype=torch.int32), torch.zeros(0, 8, dtype=torch.int32)
    starts = torch.tensor([start], dtype=torch.int32)
    metadata = built.build(hal.Batch.from_device(starts, *empty, num_tokens=6, max_query_len=1, max_seq_len=96))
    for phase in metadata.phases:
        for batches in phase.shards.values():
            assert all(torch.equal(batch.key_starts, batch.key_stops) and len(batch.key_stops) == 6 for batch in batches)
