"""Item 4: partial results of disjoint key sets, merged: identity to the bit, any order, nothing from a dead side."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from hal.testing.compare import expect_close
from hal.testing.suite.placement import place_of

from .helpers.targets import ON_KERNELS, open_target

TOKENS, WIDTH = 4, 8
LEVELS = st.sampled_from([-math.inf, math.inf, math.nan, -1e30, -60.0, -1.5, -0.0, 0.0, 0.25, 2.0, 3e3])
SEEDS = st.integers(0, 2**31)


def merge(states: list[tuple[list[float], float]]) -> tuple[list[float], float]:
    """One row over all key sets: the mean of the outs, each weighted by the sum of exponentials that its lse stands for."""
    alive = [(out, lse) for out, lse in states if math.isfinite(lse)]
    if not alive:
        return [0.0] * WIDTH, -math.inf
    highest = max(lse for _, lse in alive)
    weights = [math.exp(lse - highest) for _, lse in alive]
    total = sum(weights)
    mixed = [sum(w * out[i] for w, (out, _) in zip(weights, alive, strict=True)) / total for i in range(WIDTH)]
    return mixed, highest + math.log(total)


def draw_states(seed: int, levels: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Three states of four rows and one head; the outs of dead rows are NaN."""
    outs = torch.randn(3, TOKENS, 1, WIDTH, generator=torch.Generator().manual_seed(seed))
    lses = torch.tensor(levels, dtype=torch.float32).reshape(3, TOKENS, 1)
    outs[~lses.isfinite()] = torch.nan
    return outs, lses


@ON_KERNELS
@given(seed=SEEDS, levels=st.lists(LEVELS, min_size=12, max_size=12), order=st.permutations(range(3)))
def test_any_order_and_any_grouping_gives_one_softmax(target, seed: int, levels: list[float], order: list[int]) -> None:
    backend = open_target(target, "merge_states")
    where = place_of(backend)
    outs, lses = draw_states(seed, levels)
    first, second, third = [(outs[index].to(where), lses[index].to(where)) for index in order]
    left = backend.merge_states(*backend.merge_states(*first, *second), *third)
    right = backend.merge_states(*first, *backend.merge_states(*second, *third))
    rows = [merge([(outs[i, t, 0].tolist(), lses[i, t, 0].item()) for i in range(3)]) for t in range(TOKENS)]
    expected = torch.tensor([out for out, _ in rows])[:, None], torch.tensor([lse for _, lse in rows])[:, None]
    for out, lse in (left, right):
        expect_close(out, expected[0].double(), "float32", "out")
        expect_close(lse, expected[1].double(), "float32", "lse")


@ON_KERNELS
@given(seed=SEEDS, levels=st.lists(LEVELS, min_size=12, max_size=12), rest=st.sampled_from([0.0, math.nan, math.inf, -7.5]))
def test_identity_changes_no_bit_whatever_its_out_holds(target, seed: int, levels: list[float], rest: float) -> None:
    backend = open_target(target, "merge_states")
    where = place_of(backend)
    outs, lses = (tensor.to(where) for tensor in draw_states(seed, [lse if math.isfinite(lse) else 0.5 for lse in levels]))
    state = outs[0], lses[0]
    nothing = torch.full_like(outs[0], rest), torch.full_like(lses[0], -math.inf)
    for out, lse in (backend.merge_states(*state, *nothing), backend.merge_states(*nothing, *state)):
        assert out.view(torch.int32).tolist() == state[0].view(torch.int32).tolist()
        assert lse.view(torch.int32).tolist() == state[1].view(torch.int32).tolist()
