"""The variables hal reads."""

from __future__ import annotations

import logging

import pytest

from hal.common.contract.environment import VARIABLES, read_variable, unknown_variables, warn_of_mistakes


@pytest.mark.parametrize("name", ["HAL_BACKEND", "HAL_DEBUG", "HAL_STRICT_WARMUP"])
def test_the_contracts_variables_are_known(name: str) -> None:
    assert VARIABLES[name]
    assert read_variable(name, {name: "value"}) == "value"


@pytest.mark.parametrize("environ", [{}, {"HAL_BACKEND": ""}], ids=["absent", "empty"])
def test_absent_and_empty_are_unset(environ: dict[str, str]) -> None:
    assert read_variable("HAL_BACKEND", environ) is None


def test_a_variable_that_is_not_hals_cannot_be_read() -> None:
    with pytest.raises(KeyError, match="HAL_BACKEND"):
        read_variable("HOME", {"HOME": "/"})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("HAL_BAKEND", "HAL_BACKEND"),
        ("HAL_DEBUGG", "HAL_DEBUG"),
        ("HAL_STRICT_WARM_UP", "HAL_STRICT_WARMUP"),
        ("HAL_ZZZZZZZZZZ", ""),
    ],
)
def test_unknown_names_are_found_with_a_suggestion(name: str, near: str) -> None:
    assert unknown_variables({name: "1", "HAL_DEBUG": "1", "HALO": "1", "PATH": "/"}) == {name: near}


def test_a_warning_has_the_suggestion_or_the_list(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hal"):
        warn_of_mistakes({"HAL_BAKEND": "x", "HAL_ZZZZZZZZZZ": "x"})
    first, second = (record.getMessage() for record in caplog.records)
    assert "HAL_BAKEND" in first
    assert "HAL_BACKEND?" in first
    assert all(name in second for name in ["HAL_ZZZZZZZZZZ", *VARIABLES])


@pytest.mark.parametrize("name", ["HAL_DEBUG", "HAL_STRICT_WARMUP"])
@pytest.mark.parametrize(("value", "is_odd"), [("yes", True), ("true", True), ("0", False), ("1", False), ("", False)])
def test_a_switch_that_is_neither_on_nor_off_is_pointed_out(
    name: str, value: str, is_odd: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="hal"):
        warn_of_mistakes({name: value})
    sentences = [f"{name} is {value!r} and therefore off; expected 0 or 1"] if is_odd else []
    assert [record.getMessage() for record in caplog.records] == sentences


def test_known_names_pass_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hal"):
        warn_of_mistakes(dict.fromkeys(VARIABLES, "1"))
    assert caplog.records == []
