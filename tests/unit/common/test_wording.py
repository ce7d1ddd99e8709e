"""Messages about many things, one, or none: no empty list, no word for several where there is one, nothing said twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hal
from hal.cli.compile_view import by_reason
from hal.common.contract.reason import Reason
from hal.common.contract.wording import say_all, say_count, say_groups
from hal.common.vendor.facts import read_kernels

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([0], "caches are missing for 1;"),
        ([0, 1, 7], "caches are unknown for 7;"),
        ([], "caches are missing for 0 and 1;"),
        ([1, 7, 8], "caches are missing for 0, unknown for 7 and 8;"),
    ],
    ids=str,
)
def test_caches_that_do_not_match_are_named_and_no_empty_list(keys: list[int], said: str) -> None:
    plan = hal.plan(hal.read_shape(CONFIG), "cpu", limits=hal.Limits(16, 2, 16), dtype="float32")
    with pytest.raises(hal.LayoutError) as error:
        plan.bind(dict.fromkeys(keys))
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("row", "said"),
    [("colour = 1", "k has unknown columns ['colour'] and lacks "), ("", "k lacks ")],
    ids=["unknown_and_missing", "missing"],
)
def test_a_kernel_row_names_what_is_wrong_alone(row: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.toml").write_text(f"[kernel.k]\n{row}\n")
    monkeypatch.setattr("hal.common.vendor.facts.files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        read_kernels("pkg", "x.toml")
    assert "[]" not in str(error.value)


@pytest.mark.parametrize(
    ("reason", "one", "several"),
    [
        (Reason("not_built", "a", "code").without("a"), "its code is not written yet", "their code is not written yet"),
        (
            Reason("library_absent", "nothing", "aiter"),
            "it needs aiter, which is not installed",
            "they need aiter, which is not installed",
        ),
        (
            Reason("window", 8, "full attention only"),
            "a window of 8 keys, it takes full attention only",
            "a window of 8 keys, they take full attention only",
        ),
        (
            Reason("deterministic", "unordered", "an order"),
            "deterministic results are asked for, it is unordered",
            "deterministic results are asked for, they are unordered",
        ),
        (Reason("arch", "gfx90a", "gfx942"), "arch gfx90a is not among gfx942", "arch gfx90a is not among gfx942"),
        (
            Reason("platform", "it runs", "what it is", "it takes time"),
            "it runs on what it is devices, not on it runs; it takes time",
            "they run on what it is devices, not on it runs; it takes time",
        ),
    ],
)
def test_a_reason_speaks_of_as_many_backends_as_it_names(reason: Reason, one: str, several: str) -> None:
    """Its own words alone: what there is and what it would take are nobody's grammar."""
    assert reason.render(["a"]) == str(reason) == one
    assert reason.render(["a", "b"]) == several


def test_targets_that_fail_for_one_reason_share_its_line() -> None:
    assert by_reason({"a": "no triton", "b": "no compiler", "c": "no triton"}) == {"no triton": ["a", "c"], "no compiler": ["b"]}


def test_counts_and_lists_read_as_written_by_hand() -> None:
    assert [say_count(number, "page") for number in (0, 1, 2, 1200)] == ["0 pages", "1 page", "2 pages", "1,200 pages"]
    assert [say_all("abc"[:number]) for number in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert say_groups({"missing for": (), "unknown for": {2, 1}}) == "unknown for 1 and 2"
