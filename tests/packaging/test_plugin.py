"""A platform from outside hal: installed as a package of its own, found by its entry point, planned for and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def test_device_is_probed_and_checked(site: Path) -> None:
    result = run_hal("doctor", "--json", site=site)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
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


def test_broken_plugin_leaves_the_others_alone(config: Path, site: Path, tmp_path: Path) -> None:
    info = tmp_path / "hal_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(BROKEN_METADATA)
    (info / "entry_points.txt").write_text("[hal.backends]\nbroken = hal_broken_module:PLATFORM\n")
    both = Path(f"{site}{os.pathsep}{tmp_path}")
    assert explain(config, both)["served"]
    report = json.loads(run_hal("doctor", "--json", site=both).stdout)
    assert "ModuleNotFoundError" in report["broken_plugins"]["broken (hal-broken)"]
