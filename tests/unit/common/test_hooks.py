"""What a third party's hooks may do wrong: raise, or answer nonsense. It costs their own backend, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

import hal
from hal.common.backends.registry import find_backend

from .helpers.fakes import ask, gqa_layer, make_backend, model, register

pytestmark = pytest.mark.usefixtures("no_backends")


def explode(*_: object) -> None:
    raise KeyError("boom")


ANSWERS = {
    "raises": explode,
    "nothing": lambda *_: None,
    "text": lambda *_: "no",
    "numbers": lambda *_: [1],
    "a number": lambda *_: 0,
}
ALIKE = pytest.mark.parametrize("hook", ANSWERS.values(), ids=ANSWERS)


def register_with(**hooks: Any) -> None:
    """A portable backend, and one ranked before it with these hooks."""
    portable = make_backend("cuda:triton", rank={"*": 90})
    provides = frozenset({"paged_attention"})
    own = {name: classmethod(hook) for name, hook in hooks.items()}
    register(portable, make_backend("cuda:odd", base=portable, rank={"*": 1}, provides=provides, **own))


@ALIKE
@pytest.mark.parametrize("name", ["explain_refusal", "preferred_block_size"])
def test_an_answer_about_a_request_that_is_none_is_a_reason(name: str, hook: Any) -> None:
    register_with(**{name: hook})
    (reason,) = hal.supports_combination(ask())["cuda:odd"]
    assert (reason.code, reason.want) == ("library_broken", "cuda:odd")
    assert "Error: " in reason.have
    assert hal.select(ask()).backend == "cuda:triton"
    with pytest.raises(hal.NoBackend, match="cuda:odd") as error:
        hal.select(ask(), backend="cuda:odd")
    assert error.value.__cause__ is not None


@ALIKE
def test_an_answer_about_a_call_that_is_none_leaves_the_call_to_the_next(hook: Any) -> None:
    register_with(explain_call_refusal=hook)
    providers = hal.select(ask()).providers
    assert providers["paged_attention.decode"] == providers["paged_attention.prefill"] == "cuda:triton"


@ALIKE
@pytest.mark.parametrize("name", ["list_workspaces", "list_scratch"])
def test_buffers_that_are_none_are_an_error_of_the_backend_that_says_so(name: str, hook: Any) -> None:
    register_with(**{name: hook})
    with pytest.raises(hal.BackendError, match="cuda:odd does not say which buffers it needs: ") as error:
        hal.plan(model(gqa_layer()), "cuda:sm_90")
    assert error.value.__cause__ is not None


@ALIKE
def test_launches_that_are_none_are_an_error_of_the_backend_that_says_so(hook: Any) -> None:
    register(make_backend("cuda:odd", compiled_launches=True))
    find_backend("cuda:odd").list_launches = classmethod(hook)
    plan = hal.plan(model(gqa_layer()), "cuda:sm_90")
    if hook in (ANSWERS["text"], ANSWERS["numbers"]):
        return
    with pytest.raises(hal.BackendError, match="cuda:odd"):
        plan.warmup_keys()
