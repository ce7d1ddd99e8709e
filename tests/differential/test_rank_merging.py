"""Items 4 and 9 over ranks: candidates joined into the choice of one rank, partial results into one softmax."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hal
from hal.common.contract.parallel import local_length, owner
from hal.common.running.rank_choice import find_candidates, merge_candidates
from hal.common.running.ranks import DCPGroup
from tests.attention.helpers.histories import BOUNDED

from .helpers.choices import best

CPU = hal.kernels("cpu")


def shard(scores: torch.Tensor, parallel: hal.Parallel) -> torch.Tensor:
    """The columns of a rank's own keys, in their order, in a matrix as wide as on the first rank."""
    own = [key for key in range(scores.shape[1]) if owner(key, parallel) == parallel.dcp_rank]
    widest = local_length(scores.shape[1], hal.Parallel(dcp=parallel.dcp, interleave=parallel.interleave))
    padding = scores.new_full((scores.shape[0], widest - len(own)), float("nan"))
    return torch.cat([scores[:, own], padding], dim=1)


@BOUNDED
@given(
    ranks=st.integers(2, 5),
    interleave=st.sampled_from([1, 2, 5, 16]),
    keys=st.integers(1, 60),
    k=st.integers(1, 20),
    extra=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_the_merged_choice_is_the_choice_of_one_rank(ranks, interleave, keys, k, extra, dtype, seed) -> None:
    """With scores full of ties, zeros of both signs, infinities and NaN, and bounds from none to all of the keys."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-2, 3, (7, keys), generator=generator).to(dtype)
    scores *= torch.randint(0, 2, (7, keys), generator=generator) * 2 - 1
    for value in (float("nan"), float("inf"), float("-inf")):
        scores.masked_fill_(torch.rand(7, keys, generator=generator) < 0.1, value)
    bounds = torch.randint(0, keys + 1, (7,), generator=generator, dtype=torch.int32)
    rows = [best(row, bound, k) for row, bound in zip(scores.tolist(), bounds.tolist(), strict=True)]
    values, ids = [], []
    for rank in range(ranks):
        parallel = hal.Parallel(dcp=ranks, dcp_rank=rank, interleave=interleave)
        own = shard(scores, parallel)
        found = find_candidates(CPU, own, local_length(bounds, parallel), min(k, own.shape[1]), k + extra, parallel)
        values.append(found[0])
        ids.append(found[1])
    merged = merge_candidates(CPU, torch.cat(values, 1), torch.cat(ids, 1), k, k + extra)
    assert merged.shape == (7, k + extra)
    for found, row in zip(merged.tolist(), rows, strict=True):
        assert sorted(found[: len(row)]) == row
        assert set(found[len(row) :]) <= {-1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(DCPGroup):
    """A group whose other ranks have said what they found."""

    outs: torch.Tensor
    logs: torch.Tensor

    def exchange_states(self, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.outs, self.logs


def merge(outs: torch.Tensor, logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    parallel = hal.Parallel(dcp=outs.shape[0])
    return Told(process_group=None, parallel=parallel, divides_heads=False, outs=outs, logs=logs).merge_states(
        CPU, outs[0], logs[0]
    )


@pytest.mark.parametrize("garbage", [0.0, float("nan"), float("inf")], ids=["zeros", "nan", "infinity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("full", range(4))
def test_ranks_without_keys_add_nothing_bit_for_bit(full: int, dtype: torch.dtype, garbage: float) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    outs, logs = torch.full((4, 3, 2, 5), garbage, dtype=dtype), torch.full((4, 3, 2), float("-inf"), dtype=wide)
    outs[full], logs[full] = torch.randn(3, 2, 5).to(dtype), torch.randn(3, 2).to(wide)
    out, lse = merge(outs, logs)
    assert torch.equal(out, outs[full].to(wide))
    assert torch.equal(lse, logs[full])


def test_no_keys_anywhere_give_nothing() -> None:
    out, lse = merge(torch.full((3, 2, 2, 4), float("nan")), torch.full((3, 2, 2), float("-inf")))
    assert torch.equal(out, torch.zeros(2, 2, 4))
    assert torch.equal(lse, torch.full((2, 2), float("-inf")))


@BOUNDED
@given(ranks=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_merging_is_one_softmax_over_all_ranks_keys(ranks: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(ranks, 3, 2, 6, generator=generator, dtype=torch.float64) * 5
    scores.masked_fill_(torch.rand(ranks, 3, 2, 1, generator=generator) < 0.3, float("-inf"))
    values = torch.randn(ranks, 6, 5, generator=generator, dtype=torch.float64)
    logs = scores.logsumexp(-1)
    outs = torch.einsum("rthk,rkv->rthv", torch.softmax(scores, -1).nan_to_num(), values)
    out, lse = merge(outs, logs)
    whole = torch.cat(list(scores), dim=-1)
    torch.testing.assert_close(lse, whole.logsumexp(-1))
    torch.testing.assert_close(out, torch.softmax(whole, -1).nan_to_num() @ torch.cat(list(values)))
