"""A platform from outside hal: installed as a package of its own, found by its entry point, planned for and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]["hal.backends"]
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}

BROKEN_METADATA = "Metadata-Version: 2.1\nName: hal-broken\nVersion: 1.0\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dummy package installed in it."""
    source = tmp_path_factory.mktemp("source") / "hal_dummy"
    # setuptools leaves build files beside the sources it builds from.
    shutil.copytree(ROOT / "tests" / "plugins" / "hal_dummy", source)
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    result = subprocess.run([*command, "--target", str(target), str(source)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return target


def run_hal(*arguments: str, site: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from hal.cli import main; raise SystemExit(main(sys.argv[1:]))"
    environ = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, "-c", code, *arguments], env=environ, capture_output=True, text=True)


@pytest.fixture(scope="module")
def broken(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dummy beside a distribution whose module cannot be imported."""
    folder = tmp_path_factory.mktemp("broken")
    info = folder / "hal_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(BROKEN_METADATA)
    (info / "entry_points.txt").write_text("[hal.backends]\nbroken = hal_broken_module:PLATFORM\n")
    return Path(f"{site}{os.pathsep}{folder}")


@pytest.fixture(scope="module")
def report(broken: Path) -> dict:
    """What doctor says of the dummy beside a plugin that does not load."""
    result = run_hal("doctor", "--json", site=broken)
    assert result.returncode == 1, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def explain(config: Path, site: Path) -> dict:
    result = run_hal("explain", str(config), "--device", "dummy:d1", "--json", site=site)
    assert result.returncode == 0, result.stderr
    (device,) = json.loads(result.stdout)["devices"]
    return device


def test_platform_is_planned_for(config: Path, site: Path) -> None:
    device = explain(config, site)
    assert device["name"] == "Dummy One"
    assert [layer["backend"] for layer in device["layers"]] == ["dummy:narrow"]


def test_rejected_backend_gives_its_reason(config: Path, site: Path) -> None:
    config.write_text(json.dumps({**LLAMA, "head_dim": 32}))
    (layer,) = explain(config, site)["layers"]
    assert layer["backend"] == "dummy:portable"
    assert [reason["code"] for reason in layer["rejected"]["dummy:narrow"]] == ["head_dim"]


def test_device_is_probed_and_checked(report: dict) -> None:
    backends = {backend["name"]: backend for backend in report["backends"]}
    assert backends["dummy:portable"]["usable"]
    assert backends["dummy:portable"]["check"]["passed"], backends["dummy:portable"]["check"]


def serve_one_batch(environ: dict[str, str]) -> tuple[str, str]:
    """Who served the example's batch, and what came out."""
    command = [sys.executable, str(ROOT / "examples" / "serve_one_batch.py")]
    result = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    who, _, what = result.stdout.strip().partition(": ")
    return who, what


def test_serving_a_batch_matches_the_cpu(site: Path) -> None:
    cpu, expected = serve_one_batch(dict(os.environ))
    dummy, found = serve_one_batch({**os.environ, "PYTHONPATH": str(site)})
    assert (cpu, dummy) == ("cpu by cpu", "dummy:d1 by dummy:portable")
    assert found == expected


def test_broken_plugin_leaves_the_others_alone_and_is_a_rejected_candidate(config: Path, broken: Path, report: dict) -> None:
    device = explain(config, broken)
    assert device["served"]
    ((code, text),) = {
        (row["code"], row["text"]) for layer in device["layers"] for row in layer["rejected"]["broken (hal-broken)"]
    }
    assert code == "library_broken"
    assert "broken (hal-broken)" in text
    assert "ModuleNotFoundError: No module named 'hal_broken_module'" in text
    failures = {row["name"]: row["failure"] for row in report["plugins"]}
    assert failures.pop("broken").startswith("ModuleNotFoundError")
    assert set(failures) >= {"dummy", *OWN}
    assert not any(failures.values())


@pytest.mark.parametrize(("allowed", "is_loaded"), [("dummy", True), ("dummy,broken", True), ("none", False)])
def test_allow_list_keeps_others_from_being_imported(allowed: str, is_loaded: bool, broken: Path) -> None:
    code = "import sys, hal.common.backends.registry as r; print(sorted(r.platforms()), sorted(r.broken_plugins()), *sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(broken), "HAL_PLUGINS": allowed}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    names = sorted([*OWN, *["dummy"] * is_loaded])
    failed = ["broken (hal-broken)"] * ("broken" in allowed)
    assert result.stdout.startswith(f"{names} {failed} ")
    assert ("hal_dummy" in result.stdout.split()) == is_loaded


def test_choosing_what_a_broken_plugin_would_have_brought_says_so(broken: Path, config: Path) -> None:
    result = run_hal("explain", str(config), "--device", "dummy:d1", "--backend", "broken:kernels", site=broken)
    assert result.returncode != 0
    assert "broken (hal-broken) does not load: ModuleNotFoundError" in " ".join(result.stderr.split())


def test_a_plugin_that_loads_leaves_doctor_content(site: Path) -> None:
    assert run_hal("doctor", "--json", site=site).returncode == 0


def test_a_target_that_a_broken_plugin_would_have_brought_names_the_plugin(broken: Path, config: Path) -> None:
    result = run_hal("explain", str(config), "--device", "broken:b1", site=broken)
    assert result.returncode == 2
    assert "broken (hal-broken) does not load: ModuleNotFoundError: No module named 'hal_broken_module'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_platform_came_without_a_line_in_hal() -> None:
    sources = [path for folder in ("hal", "config", "models", "matrix") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in sources if "dummy" in path.read_text(encoding="utf-8").lower()] == []
