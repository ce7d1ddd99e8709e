"""Random input: every backend that can run here agrees with the reference, and with itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.common.backend import required_calls
from hal.common.parallel import Parallel
from hal.testing import FULL, reference
from hal.testing.case import fit_sizes
from hal.testing.cases import BatchCase
from hal.testing.compare import expect_close
from hal.testing.suite.paged import PagedCase, check_paged
from hal.testing.suite.placement import place_of
from hal.testing.targets import Target, find_targets

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)
LEVELS = st.sampled_from([-math.inf, math.inf, math.nan, -60.0, -1.5, -0.0, 0.0, 0.25, 2.0])
SEEDS = st.integers(0, 2**31)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        targets = find_targets(metafunc.config.getoption("--backend"))
        marked = [pytest.param(t, id=t.id, marks=[pytest.mark.hardware] * t.needs_hardware) for t in targets]
        metafunc.parametrize("target", marked)


def open_target(target: Target, call: str):
    if call not in required_calls(target.backend.capabilities):
        pytest.skip(f"{target.id} does not promise {call}")
    return target.backend(target.device)


@st.composite
def batch_cases(draw):
    lengths = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=5))
    queries = tuple(query for query, _ in lengths)
    return BatchCase(id="random", query_lens=queries, seq_lens=tuple(query + past for query, past in lengths))


@BOUNDED
@given(data=st.data(), batch=batch_cases(), name=st.text("abc", max_size=4), kv_heads=st.integers(1, 3), group=st.integers(1, 3))
def test_paged_attention_on_random_batches(target, data, batch, name, kv_heads, group):
    backend, declared = open_target(target, "paged_attention"), target.backend.capabilities
    sizes = fit_sizes(declared, FULL)
    if "attention" not in declared.families:
        pytest.skip(f"{target.id} serves no plain attention")
    limits = st.none() | st.integers(1, 50)
    check_paged(
        PagedCase(
            layout="kv",
            dtype=sizes.dtype,
            block_size=data.draw(st.sampled_from(sizes.block_sizes)),
            batch=batch,
            heads=kv_heads * group,
            kv_heads=kv_heads,
            widths=sizes.widths[0],
            note=name,
            window=data.draw(limits) if declared.window else None,
            chunk=data.draw(limits) if declared.chunk else None,
            softcap=data.draw(st.none() | st.floats(0.5, 50)) if declared.softcap else None,
            need_lse=declared.lse,
        ),
        backend,
    )


@BOUNDED
@given(
    rows=st.lists(st.tuples(st.lists(LEVELS, min_size=9, max_size=9), st.integers(-2, 9)), max_size=4),
    k=st.integers(1, 12),
)
def test_select_topk_with_ties_and_nan(target, rows, k):
    backend = open_target(target, "select_topk")
    if not target.backend.capabilities.deterministic:
        pytest.skip(f"{target.id} breaks ties as it likes")
    width = fit_sizes(target.backend.capabilities, FULL).topk_widths[1]
    scores = torch.tensor([values for values, _ in rows], dtype=torch.float32).reshape(len(rows), 9)
    lengths = torch.tensor([length for _, length in rows], dtype=torch.int32)
    where = place_of(backend)
    chosen = backend.select_topk(scores.to(where), lengths.to(where), k, width, True)
    expected = reference.select_topk(scores, lengths, k, width)
    assert [sorted(row) for row in chosen.tolist()] == [sorted(row) for row in expected.tolist()]
    assert _is_compact(chosen)


@st.composite
def row_inputs(draw):
    requests = draw(st.integers(1, 3))
    columns = draw(st.integers(0, 6))
    width = draw(st.integers(1, 9))
    table = draw(st.permutations(range(-3, requests * columns)))[: requests * columns]
    ids = st.integers(-2, 60) | st.sampled_from([-(2**31), 2**31 - 1])
    topk = draw(st.lists(st.lists(ids, min_size=width, max_size=width), max_size=5))
    owners = draw(st.lists(st.integers(0, requests - 1), min_size=len(topk), max_size=len(topk)))
    lengths = draw(st.lists(st.integers(0, 50), min_size=requests, max_size=requests))
    return (
        torch.tensor(topk, dtype=torch.int32).reshape(len(topk), width),
        torch.tensor(owners, dtype=torch.int32),
        torch.tensor(table, dtype=torch.int32).reshape(requests, columns),
        torch.tensor(lengths, dtype=torch.int32),
    )


@BOUNDED
@given(tensors=row_inputs(), gap=st.integers(0, 3), ranks=st.integers(1, 4), run=st.sampled_from([1, 2, 4]), data=st.data())
def test_rows_from_topk_on_every_rank(target, tensors, gap, ranks, run, data):
    backend, declared = open_target(target, "rows_from_topk"), target.backend.capabilities
    block_sizes = fit_sizes(declared, FULL).block_sizes
    block_size = data.draw(st.sampled_from([size for size in block_sizes if size % run == 0] or [4 * block_sizes[0]]))
    where = place_of(backend)
    for rank in range(ranks if declared.dcp else 1):
        parallel = Parallel(dcp=ranks, dcp_rank=rank, interleave=run) if declared.dcp else Parallel()
        options = {"block_size": block_size, "rows_per_page": block_size + gap, "parallel": parallel}
        rows, valid = backend.rows_from_topk(*(tensor.to(where) for tensor in tensors), **options)
        expected, counts = reference.rows_from_topk(*tensors, **options)
        assert valid.tolist() == counts.tolist()
        assert [sorted(row) for row in rows.tolist()] == [sorted(row) for row in expected.tolist()]
        assert _is_compact(rows)


@BOUNDED
@given(tensors=row_inputs(), ranks=st.integers(2, 4), run=st.sampled_from([1, 2, 4]))
def test_every_token_is_found_on_exactly_one_rank(tensors, ranks, run):
    topk, req_id, _, lengths = tensors
    table = torch.arange(lengths.numel() * 60, dtype=torch.int32).reshape(lengths.numel(), 60)
    shares = [Parallel(dcp=ranks, dcp_rank=rank, interleave=run) for rank in range(ranks)]
    counts = [reference.rows_from_topk(topk, req_id, table, lengths, block_size=4, parallel=share)[1] for share in shares]
    whole = reference.rows_from_topk(topk, req_id, table, lengths, block_size=4, parallel=Parallel())[1]
    assert torch.stack(counts).sum(0).tolist() == whole.tolist()


@BOUNDED
@given(seed=SEEDS, levels=st.lists(LEVELS, min_size=12, max_size=12), order=st.permutations(range(3)))
def test_merge_states_in_any_order(target, seed, levels, order):
    backend = open_target(target, "merge_states")
    where = place_of(backend)
    outs = torch.randn(3, 4, 1, 8, generator=torch.Generator().manual_seed(seed))
    lses = torch.tensor(levels, dtype=torch.float32).reshape(3, 4, 1)
    outs[~lses.isfinite()] = torch.nan
    states = [(outs[index].to(where), lses[index].to(where)) for index in order]
    first, second, third = states
    left = backend.merge_states(*backend.merge_states(*first, *second), *third)
    right = backend.merge_states(*first, *backend.merge_states(*second, *third))
    expected = _merge_all(outs, lses)
    for out, lse in (left, right):
        expect_close(out, expected[0], "float32", "out")
        expect_close(lse, expected[1], "float32", "lse")


def _merge_all(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    levels = lses.double().masked_fill(~lses.isfinite(), -math.inf)
    lse = torch.logsumexp(levels, dim=0)
    weights = torch.exp(levels - lse).nan_to_num(0.0)
    return (outs.double().nan_to_num(0.0) * weights[..., None]).sum(0), lse


def _is_compact(rows: torch.Tensor) -> bool:
    return all(-1 not in row[: len(row) - row.count(-1)] for row in rows.tolist())
