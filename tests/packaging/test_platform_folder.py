"""A platform inside the repository: a folder, a file in matrix/ and an entry point in a copy of the tree, and no other edit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("hal", "config", "models", "matrix", "tests/packaging", "tests/plugins/hal_dummy")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
LINT = Path(sys.executable).parent / "lint-imports"

PROMISES = """\
proof = "run"
archs = ["d1"]

[cell.dummy-checks]
runner = ["ubuntu-latest"]
archs = ["d1"]
torch_index = "cpu"
extras = ["test"]
suites = ["test"]
"""
FAKES = """\
from hal.testing.stand_ins import StandIn

STAND_INS = {"dummy_attn": StandIn(make=lambda arch, release: {"attend": lambda a: (arch, release, a.scale)})}
"""
CELLS = """\
import hal
from hal.testing import SMALL, conformance_cases

backend = hal.kernels("dummy:portable")
cases = conformance_cases(type(backend), SMALL, calls={"paged_attention"})[:20:4]
for case in cases:
    case.check(backend)
print(len(cases))
"""
HOLES = """\
import json
from hal.matrix.parity import compute_parity

features = [feature for feature, platform in compute_parity().unexplained if platform == "dummy"]
print(f'[[hole]]\\nfeatures = {json.dumps(features)}\\nreason = "a dummy"')
"""
STAND_IN = """\
import inspect
from types import SimpleNamespace
from hal.testing.stand_ins import installed, make_fakes

signature = inspect.Signature([inspect.Parameter("scale", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
row = SimpleNamespace(library="dummy_attn", release="1.0", target="dummy_attn:attend", signature=signature)
with installed(make_fakes([row], arch="d1", libraries={"dummy_attn": "1.0"})):
    import dummy_attn
    print(*dummy_attn.attend(0.5))
"""
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the dummy in hal/dummy, matrix/dummy.toml and its entry point."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(tree / "tests" / "plugins" / "hal_dummy" / "hal_dummy", tree / "hal" / "dummy")
    for path in (tree / "hal" / "dummy").glob("*.py"):
        text = path.read_text(encoding="utf-8").replace("hal_dummy", "hal.dummy")
        path.write_text(text.replace("from hal import", "from hal.backend import"), encoding="utf-8")
    (tree / "hal" / "dummy" / "fakes").mkdir()
    (tree / "hal" / "dummy" / "fakes" / "__init__.py").write_text(FAKES, encoding="utf-8")
    (tree / "matrix" / "dummy.toml").write_text(PROMISES, encoding="utf-8")
    project = (tree / "pyproject.toml").read_text(encoding="utf-8")
    points = '[project.entry-points."hal.backends"]\n'
    assert points in project
    (tree / "pyproject.toml").write_text(
        project.replace(points, f'{points}dummy = "hal.dummy.platform:PLATFORM"\n'), encoding="utf-8"
    )
    return tree


@pytest.fixture(scope="module")
def site(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the copy, unpacked."""
    folder = tmp_path_factory.mktemp("site")
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    built = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=tree, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LINT, "--no-cache"], cwd=tree, capture_output=True, text=True)


def run_python(site: Path, *arguments: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(site)}
    result = subprocess.run([sys.executable, *arguments], cwd=site, env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_new_folder_keeps_the_contracts_and_the_rules(tree: Path) -> None:
    result = lint(tree)
    assert result.returncode == 0, result.stdout
    ruff = subprocess.run([sys.executable, "-m", "ruff", "check", "hal/dummy"], cwd=tree, capture_output=True, text=True)
    assert ruff.returncode == 0, ruff.stdout


@pytest.mark.parametrize(
    ("name", "line", "contract"),
    [
        ("hal/dummy/probe.py", "import hal.cpu.probe", "platforms never on each other"),
        ("hal/dummy/probe.py", "import hal.config", "A platform cannot read a config"),
        ("hal/dummy/probe.py", "import rich", "Only the command line prints"),
        ("hal/dummy/probe.py", "import hal.testing", "nothing knows the tests"),
        ("hal/dummy/probe.py", "import hal.dummy.fakes", "found by its name alone"),
        ("hal/cli/app.py", "import hal.dummy.probe", "reached through the registry alone"),
    ],
    ids=["another-platform", "a-config", "printing", "the-tests", "its-fakes", "the-command-line"],
)
def test_a_new_folder_is_held_to_each_contract(tree: Path, name: str, line: str, contract: str) -> None:
    path = tree / name
    kept = path.read_text(encoding="utf-8")
    path.write_text(f"{kept}\n{line}\n", encoding="utf-8")
    try:
        result = lint(tree)
    finally:
        path.write_text(kept, encoding="utf-8")
    assert result.returncode == 1
    assert [row for row in result.stdout.splitlines() if contract in row and "BROKEN" in row], result.stdout


def test_a_folder_without_an_entry_point_is_named(tree: Path) -> None:
    (tree / "hal" / "stray").mkdir()
    (tree / "hal" / "stray" / "__init__.py").write_text("", encoding="utf-8")
    try:
        result = lint(tree)
    finally:
        shutil.rmtree(tree / "hal" / "stray")
    assert result.returncode == 1
    assert "stray" in result.stdout


def test_the_device_of_a_new_folder_is_found_its_layers_planned_and_its_file_read(site: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert run_python(site, "-c", "import hal; print(*(d.target for d in hal.detect() if d.platform == 'dummy'))") == "dummy:d1\n"
    (device,) = json.loads(run_python(site, "-m", "hal", "explain", str(config), "--device", "dummy:d1", "--json"))["devices"]
    assert [layer["backend"] for layer in device["layers"]] == ["dummy:narrow"]
    code = "from hal.matrix.fleet import read_fleet; print(*(row.archs for row in read_fleet() if row.platform == 'dummy'))"
    assert run_python(site, "-c", code) == "('d1',)\n"


def test_the_kernels_of_a_new_folder_are_held_to_the_contract_and_its_fakes_found(site: Path) -> None:
    assert int(run_python(site, "-c", CELLS)) > 3
    assert run_python(site, "-c", STAND_IN) == "d1 1.0 0.5\n"


def test_what_it_lacks_is_explained_in_its_own_file(site: Path) -> None:
    file = site / "hal" / "matrix" / "dummy.toml"
    refused = subprocess.run(
        [sys.executable, "-m", "hal", "matrix", "parity"],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert "is missing on dummy without a reason in matrix/dummy.toml" in refused.stderr
    file.write_text(PROMISES + run_python(site, "-c", HOLES), encoding="utf-8")
    assert "dummy" in run_python(site, "-m", "hal", "matrix", "parity")
