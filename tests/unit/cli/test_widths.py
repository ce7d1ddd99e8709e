"""COLUMNS and the terminal are respected, and no backend's name is ever cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from hal.cli import main
from hal.common.backends.registry import backends

COMPOSITE = Path(__file__).parents[3] / "examples" / "composite-deepseek-v3.2.json"
TARGETS = [word for target in ("cuda:sm_90", "rocm:gfx942", "xpu:pvc", "cpu") for word in ("--device", target)]


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 140])
@pytest.mark.parametrize(
    "arguments",
    [["explain", str(COMPOSITE), *TARGETS, "--memory", "80", "--weights", "auto"], ["matrix"]],
    ids=["explain", "matrix"],
)
def test_lines_fit_and_names_stay_whole(
    arguments: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= columns
    assert "…" not in text
    for name in ("cuda:flash_attention", "rocm:aiter", "cpu"):
        assert name in backends()
        assert any(name in line for line in text.splitlines())


def test_more_columns_are_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = []
    for columns in ("60", "160"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["explain", str(COMPOSITE), *TARGETS]) == 0
        lengths.append(max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines()))
    assert lengths[0] <= 60
    assert 100 < lengths[1] <= 160


@pytest.mark.parametrize("columns", ["", "0", "wide", "-3"])
def test_columns_that_say_nothing_are_passed_over(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["explain", str(COMPOSITE), "--device", "cpu"]) == 0
    assert 80 < max(len(line) for line in capsys.readouterr().out.splitlines()) <= 100
