"""A backend by a name that it had: found wherever one can be named, with a warning, and told by its own name from there on."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

import hal
from hal.common.backends.registry import find_backend

from .helpers.fakes import ask, gqa_layer, make_backend, model, register

CALLED = "the backend cuda:quick is called cuda:renamed; use that name"
LIMITS = hal.Limits(64, 2, 16)


@pytest.fixture(autouse=True)
def renamed(fleet: None) -> None:
    register(make_backend("cuda:renamed", former_names=("cuda:quick",)))


def name_by_argument(name: str) -> str:
    return hal.select(ask(), backend=name).backend


def name_by_variable(name: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HAL_BACKEND", name)
        return hal.select(ask()).backend


def name_in_a_plan(name: str) -> str:
    plan = hal.plan(model(gqa_layer()), "cuda:sm_90", limits=LIMITS, backend=name)
    return plan.selections[0].backend


def name_for_kernels(name: str) -> str:
    return hal.kernels(name, hal.Device.from_arch("sm_90", torch_device="cpu")).name


WAYS = [name_by_argument, name_by_variable, name_in_a_plan, name_for_kernels]


@pytest.mark.parametrize("way", WAYS)
def test_a_former_name_finds_the_backend_and_warns(way: Callable[[str], str]) -> None:
    with pytest.warns(FutureWarning, match=CALLED):
        assert way("cuda:quick") == "cuda:renamed"


@pytest.mark.parametrize("way", WAYS)
def test_the_name_of_today_does_not_warn(way: Callable[[str], str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert way("cuda:renamed") == "cuda:renamed"


def test_a_former_name_that_another_backend_has_by_now_is_that_backend() -> None:
    register(make_backend("cuda:quick"))
    assert find_backend("cuda:quick").name == "cuda:quick"


def test_a_refused_choice_by_a_former_name_is_told_by_the_name_of_today() -> None:
    with pytest.warns(FutureWarning), pytest.raises(hal.NoBackend, match=r"cuda:renamed .chosen by argument. cannot serve"):
        hal.select(ask(dtype="float16"), backend="cuda:quick")


@pytest.mark.parametrize("names", ["cuda:quick", ("",), (1,), None], ids=repr)
def test_former_names_that_are_no_names_are_refused(names: object) -> None:
    with pytest.raises(hal.BackendError, match="former names"):
        register(make_backend("cuda:odd", former_names=names))
