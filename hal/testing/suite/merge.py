"""Cases of merge_states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import expect_close, expect_dtype, expect_identical
from hal.testing.storage import make_generator, random_tensor, torch_dtype

from .placement import place_of, transpose_lse, untouched

State = tuple[torch.Tensor, torch.Tensor]
TOKENS, HEADS, WIDTH = 7, 3, 24
_NO_LEVELS = (-math.inf, math.inf, math.nan)
_NO_NUMBERS = (math.nan, math.inf, -math.inf)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of merge_states."""
    del capabilities
    checks = (
        ("random", check_random),
        ("identity", check_identity),
        ("far_apart", check_far_apart),
        ("one_side_dead", check_one_side_dead),
        ("both_sides_dead", check_both_dead),
        ("transposed_lse", check_transposed_lse),
        ("zero_tokens", check_zero_tokens),
    )
    for dtype in sizes.dtypes:
        for note, check in checks:
            name = describe("merge_states", dtype, note)
            yield Case(call="merge_states", id=name, check=partial(check, dtype, name))


def check_random(dtype: str, name: str, backend: Backend) -> None:
    """Two states with keys on both sides give what one softmax over all keys would."""
    generator = make_generator(name)
    _compare(backend, dtype, _random_state(generator, dtype), _random_state(generator, dtype))


def check_identity(dtype: str, name: str, backend: Backend) -> None:
    """Merging with (anything, -inf), from either side, changes no bit."""
    state = _random_state(make_generator(name), dtype)
    state[0][1], state[1][1] = 0.0, -math.inf
    for rest in (0.0, torch.nan, math.inf):
        nothing = (torch.full_like(state[0], rest), torch.full_like(state[1], -math.inf))
        for side, pair in (("right", (state, nothing)), ("left", (nothing, state))):
            out, lse = _merge(backend, *pair)
            expect_identical(out, state[0], f"out of a merge with the identity on the {side} (its out {rest})")
            expect_identical(lse, state[1], f"lse of a merge with the identity on the {side}")


def check_far_apart(dtype: str, name: str, backend: Backend) -> None:
    """LSEs thousands apart neither overflow nor lose the larger side."""
    generator = make_generator(name)
    near, far = _random_state(generator, dtype), _random_state(generator, dtype)
    for distance in (60.0, 3e3, -3e3, 1e30):
        _compare(backend, dtype, near, (far[0], far[1] + distance))


def check_one_side_dead(dtype: str, name: str, backend: Backend) -> None:
    """A side whose lse is -inf, +inf or NaN adds nothing, whatever its out holds."""
    generator = make_generator(name)
    for level, rest in product(_NO_LEVELS, _NO_NUMBERS):
        left, right = _random_state(generator, dtype), _random_state(generator, dtype)
        _kill(left, slice(0, 3), level, rest)
        _kill(right, slice(3, 5), level, rest)
        # Of one token a single head, beside others that have keys.
        _kill(left, (5, 1), level, rest)
        _kill(right, (6, 0), level, rest)
        _compare(backend, dtype, left, right)


def check_both_dead(dtype: str, name: str, backend: Backend) -> None:
    """Two dead sides give 0 and -inf."""
    generator = make_generator(name)
    for level, rest in product(_NO_LEVELS, _NO_NUMBERS):
        left, right = _random_state(generator, dtype), _random_state(generator, dtype)
        _kill(left, slice(0, 4), level, rest)
        _kill(right, slice(2, 5), -math.inf, rest)
        out, lse = _compare(backend, dtype, left, right)
        expect_identical(out[2:4].abs(), torch.zeros_like(out[2:4]), "out of two dead sides")
        expect_identical(lse[2:4], torch.full_like(lse[2:4], -math.inf), "lse of two dead sides")


def check_transposed_lse(dtype: str, name: str, backend: Backend) -> None:
    """An LSE may be a view of [heads, tokens]."""
    generator = make_generator(name)
    left, right = _random_state(generator, dtype), _random_state(generator, dtype)
    _compare(backend, dtype, left, right, reform=transpose_lse)


def check_zero_tokens(dtype: str, name: str, backend: Backend) -> None:
    """Zero tokens give empty results."""
    del name
    state = (torch.zeros(0, HEADS, WIDTH, dtype=torch_dtype(dtype)), torch.zeros(0, HEADS))
    _compare(backend, dtype, state, state)


def _random_state(generator: torch.Generator, dtype: str) -> State:
    out = random_tensor(generator, TOKENS, HEADS, WIDTH, dtype=dtype)
    return out, random_tensor(generator, TOKENS, HEADS, dtype="float32", scale=3.0)


def _kill(state: State, place: slice | tuple[int, int], level: float, rest: float) -> None:
    """No keys at some tokens or one token's head: an lse of a level, and in out whatever is left there."""
    state[0][place], state[1][place] = rest, level


def _merge(backend: Backend, left: State, right: State, reform: Callable[[torch.Tensor], torch.Tensor] | None = None) -> State:
    where = place_of(backend)
    given = [tensor.to(where) for state in (left, right) for tensor in state]
    if reform is not None:
        given[1], given[3] = reform(given[1]), reform(given[3])
    with untouched(out_a=given[0], lse_a=given[1], out_b=given[2], lse_b=given[3]):
        return backend.merge_states(*given)


def _compare(
    backend: Backend,
    dtype: str,
    left: State,
    right: State,
    reform: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> State:
    expected = reference.merge_states(*left, *right)
    out, lse = _merge(backend, left, right, reform)
    expect_dtype(out, torch_dtype(dtype), "out")
    expect_dtype(lse, torch.float32, "lse")
    expect_close(out, expected[0], dtype, "out")
    expect_close(lse, expected[1], "float32", "lse")
    return out, lse
