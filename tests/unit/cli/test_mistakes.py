"""A mistake on the command line: one line on stderr, exit code 2, nothing on stdout, no traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hal
from hal.cli import main

GOOD = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 16,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": ')
    (tmp_path / "empty").mkdir()
    return tmp_path


MISTAKES = {
    "explain-no-such-path": (["explain", "{}/absent"], "does not exist"),
    "explain-broken-json": (["explain", "{}/broken"], "config.json"),
    "explain-folder-without-config": (["explain", "{}/empty"], "config.json"),
    "explain-unknown-arch": (["explain", "{}", "--device", "gfx9421"], "did you mean 'gfx942'"),
    "explain-unknown-backend": (["explain", "{}", "--backend", "gpu"], "unknown backend 'gpu'"),
    "explain-unknown-dtype": (["explain", "{}", "--dtype", "bf17"], "unknown dtype 'bf17'"),
    "explain-unknown-layout": (["explain", "{}", "--kv-layout", "paged"], "'paged'"),
    "explain-no-memory": (["explain", "{}", "--memory", "0"], "--memory is 0"),
    "explain-memory-nan": (["explain", "{}", "--memory", "nan"], "--memory is nan"),
    "explain-memory-inf": (["explain", "{}", "--memory", "inf"], "--memory is inf"),
    "explain-memory-huge": (["explain", "{}", "--memory", "1e300"], "--memory is 1e+300"),
    "explain-memory-absurd": (["explain", "{}", "--memory", "1e12"], "--memory is 1e+12; expected a positive number of GB"),
    "explain-negative-memory": (["explain", "{}", "--memory", "-1"], "--memory is -1"),
    "explain-weights-of-no-unit": (["explain", "{}", "--weights", "12 pounds"], "--weights is '12 pounds'"),
    "explain-negative-weights": (["explain", "{}", "--weights", "-5"], "--weights is '-5'"),
    "explain-weights-absurd": (["explain", "{}", "--weights", "1e30"], "expected auto or the bytes"),
    "explain-ranks-absurd": (["explain", "{}", "--tp", "1000000"], "--tp is 1,000,000; expected at most 4,096"),
    "explain-dcp-absurd": (["explain", "{}", "--dcp", "1000000"], "--dcp is 1,000,000"),
    "explain-length-absurd": (["explain", "{}", "--max-model-len", "2000000000"], "--max-model-len is 2,000,000,000"),
    "explain-requests-absurd": (["explain", "{}", "--max-num-seqs", "2000000000"], "--max-num-seqs is 2,000,000,000"),
    "explain-tokens-absurd": (["explain", "{}", "--max-num-batched-tokens", "2000000000"], "--max-num-batched-tokens is"),
    "explain-page-absurd": (["explain", "{}", "--block-size", "1000000"], "--block-size is 1,000,000"),
    "explain-no-length": (["explain", "{}", "--max-model-len", "0"], "max_model_len is 0"),
    "explain-storage-dtype": (["explain", "{}", "--dtype", "uint8"], "expected one of float16, bfloat16, float32"),
    "explain-arch-of-no-platform": (["explain", "{}", "--device", ":sm_90"], "unknown target ':sm_90'"),
    "explain-unknown-library": (["explain", "{}", "--software", "flash_atn_3=3.0.0"], "did you mean 'flash_attn_3'?"),
    "explain-library-without-version": (["explain", "{}", "--software", "aiter"], "expected aiter=VERSION"),
    "explain-library-twice": (["explain", "{}", "--software", "aiter=0.1,aiter=0.2"], "the versions 0.1 and 0.2"),
    "explain-zero-ranks": (["explain", "{}", "--tp", "0"], "tp is 0"),
    "explain-negative-page": (["explain", "{}", "--block-size", "-1"], "block_size is -1"),
    "explain-no-requests": (["explain", "{}", "--max-num-seqs", "0"], "max_num_seqs is 0"),
    "generate-no-such-folder": (["generate", "{}/absent", "hello"], "is not a folder"),
    "generate-broken-json": (["generate", "{}/broken", "hello"], "config.json"),
    "generate-empty-prompt": (["generate", "{}", "  "], "the prompt is empty"),
    "generate-unknown-device": (["generate", "{}", "hello", "--device", "tpu"], "unknown target 'tpu'"),
    "generate-unknown-backend": (["generate", "{}", "hello", "--backend", "gpu"], "unknown backend 'gpu'"),
    "generate-unknown-dtype": (["generate", "{}", "hello", "--dtype", "int8"], "unknown dtype 'int8'"),
    "generate-cold": (["generate", "{}", "hello", "--temperature", "-1"], "--temperature is -1"),
    "generate-hot": (["generate", "{}", "hello", "--temperature", "nan"], "--temperature is nan"),
    "generate-no-top": (["generate", "{}", "hello", "--top-p", "0"], "--top-p is 0"),
    "generate-top-above-one": (["generate", "{}", "hello", "--top-p", "1.5"], "--top-p is 1.5"),
    "generate-negative-seed": (["generate", "{}", "hello", "--seed", "-1"], "--seed is -1"),
    "generate-no-tokenizer": (["generate", "{}", "hello"], "holds no tokenizer"),
    "matrix-no-such-path": (["matrix", "{}/absent"], "does not exist"),
    "matrix-broken-json": (["matrix", "{}/broken"], "config.json"),
    "matrix-unknown-arch": (["matrix", "--device", "sm_91"], "unknown target 'sm_91'"),
    "matrix-arch-twice": (["matrix", "--device", "sm_90", "--device", "cuda:sm_90"], "--device names cuda:sm_90 twice"),
    "matrix-unknown-feature": (["matrix", "--feature", "sink"], "--feature is 'sink'; did you mean 'sinks'?"),
    "matrix-unknown-layout": (["matrix", "--kv-layout", "kv_fp9"], "did you mean 'kv_fp8'?"),
    "matrix-unknown-dtype": (["matrix", "--dtype", "bf17"], "unknown dtype 'bf17'"),
    "matrix-zero-ranks": (["matrix", "--tp", "0"], "tp is 0"),
    "matrix-two-forms": (["matrix", "--json", "--html"], "--json and --html are asked for together"),
    "matrix-write-nowhere": (["matrix", "--write", "{}/absent"], "is not a folder"),
    "matrix-diff-of-one": (["matrix", "diff", "{}/config.json"], "has 1 arguments; expected OLD and NEW"),
    "matrix-diff-absent": (["matrix", "diff", "{}/absent", "{}/absent"], "absent cannot be read"),
    "matrix-diff-of-no-table": (["matrix", "diff", "{}/config.json", "{}/config.json"], "has schema None where 1 is read"),
    "matrix-diff-no-json": (["matrix", "diff", "{}/broken/config.json", "{}/config.json"], "is no JSON"),
    "matrix-diff-as-html": (["matrix", "diff", "{}/config.json", "{}/config.json", "--html"], "prints text or --markdown"),
    "matrix-parity-of": (["matrix", "parity", "cuda"], "takes no 'cuda'"),
    "compile-no-such-path": (["compile", "{}/absent"], "does not exist"),
    "compile-broken-json": (["compile", "{}/broken"], "config.json"),
    "compile-unknown-arch": (["compile", "{}", "--device", "sm_91"], "unknown target 'sm_91'"),
    "compile-zero-ranks": (["compile", "{}", "--device", "sm_90", "--tp", "0"], "tp is 0"),
    "bench-no-such-path": (["bench", "{}/absent"], "cannot be read: No such file"),
    "bench-no-context": (["bench", "{}", "--context", "0"], "--context is 0"),
    "bench-no-requests": (["bench", "{}", "--requests", "-1"], "--requests is -1"),
    "bench-unknown-arch": (["bench", "{}", "--device", "sm_91"], "unknown target 'sm_91'"),
    "bench-device-elsewhere": (["bench", "{}", "--device", "gfx1201"], "is not on this machine"),
    "bench-unknown-dtype": (["bench", "{}", "--dtype", "int8"], "unknown dtype 'int8'"),
    "bench-heads-that-do-not-divide": (["bench", "{}", "--tp", "3"], "2 heads"),
}


@pytest.mark.parametrize(("arguments", "text"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_one_line(arguments: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([argument.replace("{}", str(folder)) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("hal: ")
    assert captured.err.count("\n") == 1
    assert text in captured.err


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "a", "--no-such-option"], ["no-such-command"]], ids=str)
def test_usage_error_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_version_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hal {hal.__version__}\n"


def test_unknown_log_level_is_pointed_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HAL_LOG", "loud")
    assert main(["matrix"]) == 0
    assert "HAL_LOG is 'loud'; expected one of debug, info, warning, error" in capsys.readouterr().err


def test_unknown_backend_in_the_environment_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HAL_BACKEND", "gpu")
    assert main(["explain", str(folder)]) == 2
    assert "HAL_BACKEND is set: unknown backend 'gpu'" in capsys.readouterr().err


def test_misspelt_variable_is_pointed_out_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HAL_BACKEMD", "cpu")
    assert main(["explain", str(folder)]) == 0
    assert capsys.readouterr().err.count("did you mean HAL_BACKEND?") == 1


@pytest.mark.parametrize("command", ["explain", "generate", "doctor", "matrix", "compile", "bench"])
def test_help_of_a_command_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"hal {command} " in " ".join(text.partition("Examples:")[2].split()) + " "
    assert not re.search(r"<int|<float|list\[str|\[\[", text)


def test_the_first_help_shows_examples_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "hal explain config.json" in text.partition("Examples:")[2]
    assert "..." not in text.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("arguments", "pinned"), [(["--backend", "xpu:kernels"], ""), ([], "xpu:kernels")], ids=["option", "variable"]
)
def test_a_former_name_of_a_backend_is_a_line_on_stderr_and_taken(folder: Path, arguments: list[str], pinned: str) -> None:
    (folder / "config.json").write_text(json.dumps({**GOOD, "head_dim": 64}))
    command = [sys.executable, "-m", "hal", "explain", str(folder), "--device", "xpu:pvc", "--json", *arguments]
    result = subprocess.run(command, env={**os.environ, "HAL_BACKEND": pinned}, capture_output=True, text=True)
    assert result.stderr == "hal: WARNING: the backend xpu:kernels is called xpu:vllm_kernels; use that name\n"
    (device,) = json.loads(result.stdout)["devices"]
    assert device["layers"][0]["backend"] == "xpu:vllm_kernels"
