"""Fitting a call to the signature that is there."""

from __future__ import annotations

import pytest

from hal.common.contract.errors import BackendError
from hal.common.vendor import VendorCall
from hal.common.vendor.call import fit_arguments
from hal.matrix.signatures import parse_parameters


def call(*optional: str, **kwargs: object) -> VendorCall:
    return VendorCall(target="library:function", kwargs=kwargs, optional=frozenset(optional))


def test_optional_argument_that_an_older_release_lacks_is_left_out() -> None:
    wanted = call("b", a=1, b=2)
    assert fit_arguments(wanted, parse_parameters("a, b=0")) == {"a": 1, "b": 2}
    assert fit_arguments(wanted, parse_parameters("a")) == {"a": 1}


def test_needed_argument_that_is_not_taken_is_named() -> None:
    with pytest.raises(BackendError, match="library:function has no argument b, c"):
        fit_arguments(call(a=1, b=2, c=3), parse_parameters("a"))


def test_argument_without_a_default_that_is_not_given_is_named() -> None:
    with pytest.raises(BackendError, match="missing a required argument: 'b'"):
        fit_arguments(call(a=1), parse_parameters("a, b"))


def test_positional_only_argument_cannot_be_given_by_name() -> None:
    with pytest.raises(BackendError, match="'a'"):
        fit_arguments(call(a=1), parse_parameters("a, /"))


def test_function_that_takes_anything_gets_everything() -> None:
    assert fit_arguments(call("b", a=1, b=2), parse_parameters("*args, **kwargs")) == {"a": 1, "b": 2}


@pytest.mark.parametrize("text", ["a,, b", "a): pass\ndef other(", "1"])
def test_recorded_parameters_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a list of parameters"):
        parse_parameters(text)


def test_recorded_parameters_keep_kinds_and_defaults() -> None:
    signature = parse_parameters("a, /, b=(-1, -1), *rest, c, d=TopK.NONE, **more")
    assert str(signature) == "(a, /, b=(-1, -1), *rest, c, d=Ellipsis, **more)"
