"""What vendor libraries do to an answer: absent, broken, too old, assumed."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common.backends.judging import explain_refusal
from hal.common.contract.software import Library, version_tuple
from hal.common.vendor.presence import find_libraries

from .helpers.fakes import ask, codes, make_backend

FLASH = Library(name="flash", distributions=("flash-wheel", "flash-fork"), minimum="2.8")


def reasons_with(software: hal.Software | None, *libraries: Library) -> tuple[hal.Reason, ...]:
    return explain_refusal(make_backend("cuda:fake", libraries=libraries or (FLASH,)), ask(software=software))


@pytest.mark.parametrize(
    ("software", "code", "words"),
    [
        (hal.Software({}), "library_absent", ["flash"]),
        (hal.Software({"flash": "2.7.4"}), "library_version", ["2.7.4", "flash 2.8"]),
        (hal.Software({"flash": "2.9"}, broken={"flash": "OSError: no libcudart"}), "library_broken", ["flash", "no libcudart"]),
    ],
    ids=["absent", "old", "broken"],
)
def test_a_library_in_the_way_is_named(software: hal.Software, code: str, words: list[str]) -> None:
    (reason,) = reasons_with(software)
    assert reason.code == code
    assert all(word in str(reason) for word in words)


@pytest.mark.parametrize("version", ["2.8", "2.8.0", "2.8.1+cu129", "2.10", "3.0.0b1", "10"])
def test_a_new_enough_library_is_no_obstacle(version: str) -> None:
    assert reasons_with(hal.Software({"flash": version})) == ()


@pytest.mark.parametrize(("version", "minimum"), [("2.8", "2.8.0"), ("3", "3.0.0"), ("2.8.0", "2.8")])
def test_trailing_zeros_do_not_make_a_version_newer(version: str, minimum: str) -> None:
    library = Library(name="flash", distributions=(), minimum=minimum)
    assert reasons_with(hal.Software({"flash": version}), library) == ()


def test_no_software_assumes_every_library() -> None:
    assert reasons_with(None) == ()


def test_each_missing_library_has_its_own_reason() -> None:
    other = Library(name="gemm", distributions=("gemm",))
    assert codes(reasons_with(hal.Software({}), FLASH, other)) == ["library_absent", "library_absent"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.8.1+cpu", (2, 8, 1)), ("3.0.2b1", (3, 0, 2)), ("1.2rc1", (1, 2)), ("2026.1", (2026, 1)), ("", ()), ("dev", ())],
    ids=repr,
)
def test_a_version_is_its_leading_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_tuple(text) == numbers


PIECES = st.lists(st.integers(0, 300), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(version=PIECES, minimum=PIECES)
def test_versions_compare_as_numbers(version: list[int], minimum: list[int]) -> None:
    library = Library(name="flash", distributions=(), minimum=".".join(map(str, minimum)))
    padded = [numbers + [0] * (4 - len(numbers)) for numbers in (version, minimum)]
    is_old = bool(reasons_with(hal.Software({"flash": ".".join(map(str, version))}), library))
    assert is_old == (padded[0] < padded[1])


def test_software_is_a_value() -> None:
    assert hal.Software({"a": "1", "b": "2"}) == hal.Software({"b": "2", "a": "1"})
    assert hash(hal.Software({"a": "1"})) == hash(hal.Software({"a": "1"}))
    assert hal.Software({"a": "1"}) != hal.Software({"a": "1"}, broken={"a": "x"})
    assert hal.Software({"a": "1"}).version("b") is None
    assert hal.Software().failure("a") is None


def test_versions_come_from_metadata_in_the_order_of_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk = {"flash-fork": "2.9", "gemm": "1.0"}

    def distribution(name: str) -> SimpleNamespace:
        if name not in on_disk:
            raise importlib.metadata.PackageNotFoundError(name)
        return SimpleNamespace(version=on_disk[name], files=())

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    absent = Library(name="absent", distributions=("nowhere",))
    assert find_libraries([FLASH, Library(name="gemm", distributions=("gemm",)), absent]) == hal.Software(
        {"flash": "2.9", "gemm": "1.0"}
    )
    on_disk["flash-wheel"] = "3.0"
    assert find_libraries([FLASH]).version("flash") == "3.0"
