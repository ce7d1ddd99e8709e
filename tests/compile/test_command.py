"""hal compile: its exit codes, its table, its JSON, and what it says where it cannot compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hal.cli import main
from hal.matrix import read_fleet
from hal.matrix.compile import CompileReport, KernelRow, fleet_devices, sample_models
from hal.matrix.figures import Figures
from hal.matrix.targets import find_arch, find_toolchain

TINY = {
    "model_type": "tiny",
    "dtype": "bfloat16",
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 16,
    "max_position_embeddings": 64,
}
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
from hal.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture
def without_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_samples_are_a_sparse_model_and_a_grouped_one() -> None:
    shapes = sample_models().values()
    assert sorted((shape.is_sparse, shape.is_mla) for shape in shapes) == [(False, False), (True, True)]


def test_fleet_is_every_arch_with_a_compiler() -> None:
    promised = [(proof.platform, arch) for proof in read_fleet() if proof.proof != "run" for arch in proof.archs]
    assert [(device.platform, device.arch) for device in fleet_devices()] == promised


@pytest.mark.usefixtures("without_interpreter")
def test_good_kernels_compile_with_exit_code_0_and_their_figures(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(config), "--device", "gfx942", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    kernels = {row["kernel"] for row in report["rows"]}
    assert {"cache:write_rows", "attend:attend_keys", "merge:merge_pair"} <= kernels
    assert all(row["target"] == "rocm:gfx942" and not row["faults"] for row in report["rows"])
    attending = [row["figures"] for row in report["rows"] if row["kernel"] == "attend:attend_keys"]
    assert all(figures["matrix"] and figures["stores"] and figures["registers"] for figures in attending)
    assert main(["compile", str(config), "--device", "gfx942"]) == 0
    shown = capsys.readouterr().out
    assert "attend:attend_keys" in shown
    assert "none failed" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.usefixtures("without_interpreter")
def test_a_kernel_over_a_limit_fails(config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = replace(find_arch("rocm", "gfx942"), registers_per_thread=3)
    monkeypatch.setattr("hal.matrix.compile.find_arch", lambda *_: narrow)
    assert main(["compile", str(config), "--device", "gfx942"]) == 1
    assert "registers per thread; gfx942 has 3" in " ".join(capsys.readouterr().out.split())


def test_a_layer_without_a_tile_fails_with_the_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("triton")
    wide = tmp_path / "wide.json"
    wide.write_text(json.dumps({**TINY, "head_dim": 1 << 14}))
    assert main(["compile", str(wide), "--device", "sm_120"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "compiles nothing for" in shown
    assert "sm_120" in shown


def test_a_target_without_a_compiler_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compilers = {proof.compiler.name: proof for proof in read_fleet() if proof.compiler is not None}
    absent = [proof for name, proof in compilers.items() if name not in find_toolchain().compilers]
    target = f"{absent[0].platform}:{absent[0].archs[0]}"
    assert main(["compile", str(config), "--device", target]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{target} not compiled: triton" in shown
    assert "nothing was compiled" in shown


def test_the_reference_platform_compiles_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(config), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert "not compiled ahead of time" in " ".join(captured.out.split())
    assert captured.err.startswith("hal: cpu was not compiled: ")


@pytest.mark.parametrize(("named", "code"), [([], 0), (["--device", "pvc"], 2)], ids=["fleet", "named"])
def test_only_a_named_target_fails_for_want_of_a_compiler(
    named: list[str], code: int, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = Figures(shared_bytes=0, registers=1, spills=0, matrix=0, stores=1, asked_matrix=0, asked_stores=1)
    row = KernelRow(target="cuda:sm_90", kernel="k", models=("tiny",), specialisation=None, figures=figures, faults=())
    report = CompileReport(toolchain=find_toolchain(), rows=(row,), absent={"xpu:pvc": "no compiler"})
    monkeypatch.setattr("hal.cli.compile.compile_models", lambda *_, **__: report)
    assert main(["compile", str(config), *named]) == code


def test_without_triton_the_reason_is_told(config: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", WITHOUT_TRITON, "compile", str(config), "--device", "sm_90"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    shown = " ".join(result.stdout.split())
    assert "cuda:sm_90 not compiled" in shown
    assert "install hal-attention[compile]" in shown


def test_a_reason_that_all_targets_share_is_told_once() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", WITHOUT_TRITON, "compile"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 2
    for shown in (result.stdout, result.stderr):
        assert shown.count("install hal-attention[compile]") == 1
        assert all(shown.count(device.target) == 1 for device in fleet_devices())
