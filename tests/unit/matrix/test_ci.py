"""The cells of CI: what their files may hold, what GitHub is given, and what the workflows make of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hal.cli import main
from hal.common.backends.registry import platforms
from hal.matrix import read_fleet
from hal.matrix.ci import SELF_HOSTED, SUITES, choose_cells, read_cells

ROOT = Path(__file__).parents[3]
WORKFLOWS = ROOT / ".github" / "workflows"
CELLS = read_cells()
GOOD: dict[str, Any] = {"runner": ["ubuntu-latest"], "archs": ["sm_90"], "torch_index": "cpu", "suites": ["test"]}
HEAD = 'proof = "run"\narchs = []\n'


def write_cell(name: str = "one", **columns: Any) -> str:
    """A cell of a platform's file; a column that is None is left out."""
    rows = {key: value for key, value in {**GOOD, **columns}.items() if value is not None}
    lines = [f"{key} = {_to_toml(value)}" for key, value in rows.items()]
    return "\n".join([f"[cell.{name}]", *lines, ""])


def _to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("hal.matrix.fleet.files", lambda _: tmp_path)
    return tmp_path


def github(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[dict[str, Any]]]:
    assert main(["matrix", "--github", *arguments]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return {name: group["include"] for name, group in json.loads(line).items()}


def test_every_platform_has_a_hosted_cell_and_every_accelerator_a_runner_of_its_own() -> None:
    hosted = {cell.platform for cell in CELLS if not cell.needs_hardware}
    owned = {cell.platform for cell in CELLS if cell.needs_hardware}
    assert hosted == set(platforms())
    assert owned == {name for name, platform in platforms().items() if not platform.always_present}


def test_a_hardware_cell_names_its_device_in_a_label_and_no_hosted_cell_asks_for_one() -> None:
    for cell in CELLS:
        labels = {f"hal-{cell.platform}-{arch}" for arch in cell.archs}
        assert labels <= set(cell.runner) if cell.needs_hardware else SELF_HOSTED not in cell.runner
        assert cell.needs_hardware == any(SUITES[suite].needs_device for suite in cell.suites)


def test_what_is_compiled_is_what_the_fleet_promises() -> None:
    promised = {proof.platform: set(proof.archs) for proof in read_fleet() if proof.compiler is not None}
    assert all(set(cell.compile_targets) <= promised[cell.platform] for cell in CELLS if cell.compile_targets)


def test_hosted_cells_run_what_the_script_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    checks = set(re.findall(r"^check make (?:--keep-going )?([a-z-]+)", script, re.M))
    checks |= set(re.search(r"^check_both ([a-z-]+) ([a-z-]+)", script, re.M).groups())
    compiled = set(re.search(r"--device %s ' ([^)]*)\)", script)[1].split())
    hosted = [cell for cell in CELLS if not cell.needs_hardware]
    assert {suite for cell in hosted for suite in cell.suites} == checks
    assert {arch for cell in hosted for arch in cell.compile_targets} == compiled


def test_a_hosted_suite_is_a_target_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {name for name, suite in SUITES.items() if suite.command.startswith("make")} <= targets


def test_github_is_given_every_cell_once_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    given = github(capsys)
    assert [entry["name"] for group in given.values() for entry in group] == [
        *(cell.name for cell in CELLS if not cell.needs_hardware),
        *(cell.name for cell in CELLS if cell.needs_hardware),
    ]
    assert all(SELF_HOSTED in entry["runner"] for entry in given["hardware"])
    (compiling,) = (entry for entry in given["hosted"] if entry["name"] == "cuda-compile")
    assert compiling["run"].startswith("make compile ARGS='--device cuda:sm_80 --device cuda:sm_90")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("none", []),
        ("", []),
        ("cuda-sm_90", ["cuda-sm_90"]),
        ("rocm-gfx942, cuda-sm_90", ["rocm-gfx942", "cuda-sm_90"]),
        ("xpu-pvc,xpu-pvc", ["xpu-pvc"]),
        ("all", [cell.name for cell in CELLS if cell.needs_hardware]),
    ],
)
def test_a_variable_names_the_hardware_cells_that_have_a_runner(
    names: str, chosen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = github(capsys, "--cells", names)
    assert [entry["name"] for entry in given["hardware"]] == chosen
    assert len(given["hosted"]) == sum(not cell.needs_hardware for cell in CELLS)


MISTAKES = {
    "unknown_cell": (["--github", "--cells", "cuda-sm_9"], "'cuda-sm_9'; did you mean 'cuda-sm_90'? known: cuda-sm_80"),
    "hosted_cell": (["--github", "--cells", "cpu-tests"], "the cells that have a runner name 'cpu-tests'"),
    "cells_alone": (["--cells", "all"], "--cells goes with --github"),
    "two_forms": (["--github", "--json"], "no config, target or other form"),
    "a_target": (["--github", "--device", "cpu"], "no config, target or other form"),
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_on_the_command_line_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err


BAD = {
    "column": ({"colour": "red"}, r"one has unknown columns \['colour'\]; columns: runner, archs"),
    "no_suites": ({"suites": None}, r"one lacks \['suites'\]"),
    "arch": ({"archs": ["sm_91"]}, "archs names the arch 'sm_91'; did you mean 'sm_90'"),
    "arch_of_another_platform": ({"archs": ["gfx942"]}, "archs names the arch 'gfx942'"),
    "compile_target": ({"compile_targets": ["sm_1"], "suites": ["compile"]}, "compile_targets names the arch 'sm_1'"),
    "compile_targets_that_nothing_compiles": ({"compile_targets": ["sm_90"]}, "both or none"),
    "nothing_to_compile": ({"suites": ["compile"]}, "both or none"),
    "suite": ({"suites": ["tests"]}, "suites names 'tests'; did you mean 'test'"),
    "device_suite_on_a_hosted_runner": ({"suites": ["conformance"]}, "conformance, which needs a device, on ubuntu-latest"),
    "extra": ({"extras": ["cud"]}, "extras names 'cud'; did you mean 'cuda'"),
    "library": ({"software": {"flash_atn_3": "3.0.0"}}, "the library 'flash_atn_3'; did you mean 'flash_attn_3'"),
    "version": ({"software": {"flash_attn_3": "new"}}, "flash_attn_3 'new'; expected a version"),
    "version_that_is_no_text": ({"software": {"flash_attn_3": 3}}, "expected a table of versions by library"),
    "index_with_a_host": ({"torch_index": "https://x/cu130"}, "expected an index's word"),
    "runner": ({"runner": "ubuntu-latest"}, "runner 'ubuntu-latest'; expected a list of texts"),
    "no_runner": ({"runner": []}, "has an empty list"),
    "minutes": ({"timeout_minutes": 0}, "timeout_minutes 0; expected a whole number of at least 1"),
    "name": ({"name": '"A b"'}, "is no name of small letters"),
}


@pytest.mark.parametrize(("columns", "said"), BAD.values(), ids=BAD)
def test_a_cell_that_cannot_be_is_named_with_its_file(columns: dict[str, Any], said: str, folder: Path) -> None:
    (folder / "cuda.toml").write_text(HEAD + write_cell(**columns))
    with pytest.raises(ValueError, match=f"matrix/cuda.toml: cell .*{said}"):
        read_cells()


def test_a_good_cell_is_read(folder: Path) -> None:
    (folder / "cuda.toml").write_text(HEAD + write_cell(software={"flash_attn_3": "3.0.0"}, extras=["cuda"], timeout_minutes=5))
    (cell,) = read_cells()
    assert (cell.name, cell.platform, cell.archs, cell.timeout_minutes) == ("one", "cuda", ("sm_90",), 5)


def test_two_cells_of_one_name_are_refused_within_a_file_and_across_files(folder: Path) -> None:
    (folder / "cuda.toml").write_text(HEAD + write_cell() + write_cell())
    with pytest.raises(ValueError, match=r"matrix/cuda.toml cannot be read: .*one.*twice"):
        read_cells()
    (folder / "cuda.toml").write_text(HEAD + write_cell())
    (folder / "rocm.toml").write_text(HEAD + write_cell(archs=["gfx942"]))
    with pytest.raises(ValueError, match=r"two cells are called one: in matrix/cuda.toml and matrix/rocm.toml"):
        read_cells()


def test_cells_are_no_part_of_what_an_unknown_key_is_told_beside(folder: Path) -> None:
    (folder / "cuda.toml").write_text(HEAD + "cell = 3\n")
    with pytest.raises(ValueError, match=r"cell is 3; expected a table"):
        read_cells()


def test_only_known_cells_are_chosen() -> None:
    with pytest.raises(ValueError, match="known: none"):
        choose_cells([], "cuda-sm_90")


def test_workflows_use_only_what_an_entry_has(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [entry for group in github(capsys).values() for entry in group]
    for path in WORKFLOWS.glob("*.yml"):
        used = set(re.findall(r"\bmatrix\.(\w+)", path.read_text()))
        assert used, path
        assert all(used <= entry.keys() for entry in entries), path


def test_hardware_waits_for_a_variable_and_for_runners_that_are_named() -> None:
    text = (WORKFLOWS / "ci.yml").read_text()
    job = text.partition("\n  hardware:\n")[2]
    assert re.search(r"if: >-\n\s+vars\.HAL_HARDWARE_CELLS != ''", job)
    assert "cells: ${{ vars.HAL_HARDWARE_CELLS }}" in job
    assert "uses: ./.github/workflows/hardware.yml" in job
    assert SELF_HOSTED not in text
    assert "fromJSON(needs.cells.outputs.matrix).hosted" in text


def test_the_docs_call_the_workflow_as_it_is() -> None:
    pages = (ROOT / "docs" / "explain.md", WORKFLOWS / "hardware.yml")
    calls = [re.search(r"jobs:\n(?:#?.*\n){4}", path.read_text())[0] for path in pages]
    first, second = (re.sub(r"^#?\s*", "", call, flags=re.M).split("\n")[:5] for call in calls)
    assert first == second


def test_actionlint_finds_nothing_in_the_workflows() -> None:
    checker = shutil.which("actionlint", path=str(Path(sys.executable).parent)) or shutil.which("actionlint")
    if checker is None:
        pytest.skip("actionlint is not installed; the extra test brings it, and make lint runs it")
    result = subprocess.run([checker, "-no-color", *map(str, WORKFLOWS.glob("*.yml"))], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
