"""Reasons: a closed list, sentences with the values, the environment's first."""

from __future__ import annotations

import pytest

import hal
from hal.common.contract.reason import CODES, order_reasons

ENVIRONMENTAL = ["platform", "arch", "not_built", "library_absent", "library_broken", "library_version"]
LISTED = [
    *ENVIRONMENTAL,
    "kind",
    "dtype",
    "kv_layout",
    "block_size",
    "head_dim",
    "v_head_dim",
    "heads",
    "topk_width",
    "window",
    "sink",
    "softcap",
    "causal",
    "chunk",
    "position_bias",
    "dcp",
    "lse",
    "deterministic",
    "graphs",
    "spec_decode",
    "compressed",
    "memory",
]


def test_codes_are_the_closed_list() -> None:
    assert sorted(CODES) == sorted(LISTED)


def test_an_unknown_code_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'colour'.*head_dim"):
        hal.Reason("colour", 1, 2)


@pytest.mark.parametrize("code", LISTED)
def test_every_sentence_has_what_it_would_take(code: str) -> None:
    text = str(hal.Reason(code, "HAVE", "WANT"))
    assert "WANT" in text or code in {"not_built", "deterministic", "library_absent"}
    assert "HAVE" in text or code in {"library_absent", "lse"}


@pytest.mark.parametrize("code", LISTED)
def test_a_fix_ends_the_sentence(code: str) -> None:
    assert str(hal.Reason(code, 1, 2, fix="turn it off")).endswith("; turn it off")


@pytest.mark.parametrize(
    ("want", "text"),
    [
        (frozenset({64}), "64"),
        (("bfloat16", "float16"), "bfloat16 or float16"),
        (frozenset({"sm_90", "sm_100", "sm_80"}), "sm_100, sm_80 or sm_90"),
        (None, "none"),
    ],
    ids=str,
)
def test_collections_are_written_as_people_do(want: object, text: str) -> None:
    assert str(hal.Reason("dtype", "float32", want)).endswith(f"one of {text}")


@pytest.mark.parametrize("code", LISTED)
def test_a_reason_knows_whether_the_environment_is_why(code: str) -> None:
    assert hal.Reason(code, 1, 2).is_environmental == (code in ENVIRONMENTAL)


def test_environmental_reasons_come_first_and_once() -> None:
    window, dtype, arch = hal.Reason("window", 8, ""), hal.Reason("dtype", "a", "b"), hal.Reason("arch", "x", "y")
    assert order_reasons([window, arch, dtype, arch, window]) == (arch, window, dtype)
