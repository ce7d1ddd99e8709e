"""The generated files of matrix/ are what this checkout gives, and the page keeps its data to itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hal.cli import main
from hal.cli.matrix import Inquiry, compute, render
from hal.matrix.page import support_page
from hal.matrix.parity import compute_parity
from hal.matrix.proof import read_evidence

FOLDER = Path(__file__).parents[3] / "matrix"
NAMES = ("support.json", "support.md", "support.html", "parity.json", "parity.md")


@pytest.fixture(autouse=True)
def own_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAL_BACKEND", raising=False)


def test_generated_files_are_fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hal matrix --write matrix` writes them anew."""
    assert main(["matrix", "--write", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
    stale = [name for name in NAMES if (tmp_path / name).read_text() != (FOLDER / name).read_text()]
    assert stale == []
    (tmp_path / "support.md").write_text("by hand")
    assert main(["matrix", "--check", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "support.md is not what this checkout gives" in error
    assert "support.json" not in error


def test_the_page_holds_its_data_and_nothing_ends_its_script() -> None:
    page = (FOLDER / "support.html").read_text()
    found = re.search(r"const data = (\{.*\});\n", page)
    assert found is not None
    data = json.loads(found[1])
    assert data["support"]["cells"] == json.loads((FOLDER / "support.json").read_text())["cells"]
    assert data["parity"] == json.loads((FOLDER / "parity.json").read_text())
    assert "</" not in found[1]
    assert not re.search(r"(?:src|href)\s*=|@import|https?://", page)


def test_a_sentence_cannot_end_the_script() -> None:
    (cell,) = compute(Inquiry(targets=("cpu",), features=("graphs",)))[:1]
    page = support_page([replace(cell, reasons=("</script><b>",))], compute_parity(), read_evidence())
    assert page.count("</script>") == 1


@pytest.mark.parametrize("form", ["json", "markdown", "html"])
def test_the_command_prints_each_form(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(FOLDER.parent / "examples" / "composite-deepseek-v3.2.json")
    asked = "--device sm_90 --device cpu --kv-layout fp8 --dtype bfloat16 --dtype float16"
    arguments = [config, *asked.split()]
    assert main(["matrix", *arguments, f"--{form}"]) == 0
    text = capsys.readouterr().out
    assert "composite-deepseek-v3.2" in text
    inquiry = Inquiry(configs=(Path(config),), targets=("sm_90", "cpu"), kv_layouts=("fp8",), dtypes=("bfloat16", "float16"))
    assert text == render(compute(inquiry), form)
    assert len(compute(inquiry)) == 4


def test_markdown_tells_every_report() -> None:
    text = (FOLDER / "support.md").read_text()
    for each in read_evidence():
        assert f"| {each.backend} | {each.arch} |" in text
        assert each.suite in text
        assert each.date in text
