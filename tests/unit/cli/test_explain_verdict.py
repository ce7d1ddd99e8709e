"""hal explain: its exit code and verdict, what it says is proved, and a capacity that never passes what was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hal
from hal.cli import main
from hal.cli.explain import UNSERVED
from hal.matrix.proof import Evidence

SHORT = {
    "model_type": "sample",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 10,
    "max_position_embeddings": 128,
}
BLOOM = {**SHORT, "position_embedding_type": "alibi", "alibi": True}


def write(tmp_path: Path, config: dict[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def explain_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["explain", *arguments, "--json"]) == code
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


SERVED_ON = {
    "nowhere": (("cpu", "sm_90"), BLOOM, (), UNSERVED, []),
    "everywhere": (("cpu", "sm_90"), SHORT, (), 0, ["cpu", "cuda:sm_90"]),
    "on_one_of_two": (("cpu", "sm_90"), SHORT, ("--dtype", "float64"), 0, ["cpu"]),
    "pinned_elsewhere": (("sm_90",), SHORT, ("--backend", "cpu"), UNSERVED, []),
}


@pytest.mark.parametrize(("devices", "config", "more", "code", "served"), SERVED_ON.values(), ids=SERVED_ON)
def test_exit_code_and_verdict_say_where_a_model_is_served(
    devices: tuple[str, ...],
    config: dict[str, Any],
    more: tuple[str, ...],
    code: int,
    served: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [write(tmp_path, config), *(word for target in devices for word in ("--device", target)), *more]
    report = explain_json(capsys, *asked, code=code)
    assert report["served_on"] == served
    assert main(["explain", *asked]) == code
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == report["verdict"]
    assert last.startswith(
        "verdict: served nowhere that was asked for" if not served else f"verdict: served on {', '.join(served)}"
    )


def test_unserved_is_no_failure_where_it_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = explain_json(capsys, write(tmp_path, BLOOM), "--device", "cpu", "--allow-unserved")
    assert report["served_on"] == []


def test_a_model_without_attention_is_not_called_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, {**SHORT, "layer_types": ["linear_attention"] * 2})
    assert main(["explain", folder, "--device", "cpu"]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("verdict: no layer of it attends")


def test_json_says_its_schema_and_hals_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = explain_json(capsys, write(tmp_path, SHORT), "--device", "cpu")
    assert (report["schema"], report["hal"]) == (1, hal.__version__)


@pytest.mark.parametrize("config", [SHORT, {**SHORT, "sliding_window": 16}], ids=["full", "windows"])
@pytest.mark.parametrize("length", [None, 50, 1000])
@pytest.mark.parametrize("memory", ["0.001", "1", "500"])
def test_no_request_is_longer_than_was_asked_for(
    config: dict[str, Any], length: int | None, memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [write(tmp_path, config), "--device", "cpu", "--memory", memory, "--max-num-seqs", "4"]
    asked += [] if length is None else ["--max-model-len", str(length)]
    (device,) = explain_json(capsys, *asked)["devices"]
    capacity = device["capacity"]
    assert 0 <= capacity["each_request"] <= capacity["one_request"] <= (length or 128)
    assert main(["explain", *asked]) == 0
    for line in capsys.readouterr().out.splitlines():
        if " tokens over all requests" in line:
            assert "pool" in line


def evidence(**changes: Any) -> Evidence:
    given = {
        "backend": "cpu",
        "arch": "cpu",
        "call": "paged_attention",
        "state": "verified",
        "suite": "a_suite",
        "means": "the device itself",
        "device": "a processor",
        "commit": "0123456789abcdef",
        "date": "2026-01-31",
        "passed": 7,
        "layouts": frozenset({"kv"}),
        "dtypes": frozenset({"float32", "bfloat16"}),
    }
    return Evidence(**{**given, **changes})


CALLS = ("write_cache", "gather_cache", "paged_attention", "merge_states")
CARD = {"backend": "cuda:triton", "arch": "sm_90"}
PROVED = {
    "a_cpu_is_no_card": ("cpu", {}, "verified on a CPU"),
    "a_card": ("sm_90", CARD, "ran on a card"),
    "interpreted": ("sm_90", {**CARD, "state": "emulated"}, "emulated"),
    "executed": ("sm_90", {**CARD, "state": "executed"}, "executed on a CPU"),
    "compiled": ("sm_90", {**CARD, "state": "compiled"}, "compiled"),
    "another_arch": ("sm_90", {**CARD, "arch": "sm_100"}, "declared"),
    "another_dtype": ("sm_90", {**CARD, "dtypes": frozenset({"float16"})}, "declared"),
    "another_layout": ("sm_90", {**CARD, "layouts": frozenset({"latent"})}, "declared"),
}


@pytest.mark.parametrize(("target", "changes", "said"), PROVED.values(), ids=PROVED)
def test_each_backend_comes_with_how_far_it_is_proved(
    target: str,
    changes: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = tuple(evidence(**{**changes, "call": call}) for call in CALLS)
    monkeypatch.setattr("hal.matrix.proof.read_evidence", lambda: known)
    asked = [write(tmp_path, SHORT), "--device", target, "--software", "none"]
    (device,) = explain_json(capsys, *asked)["devices"]
    assert device["layers"][0]["proof"]["text"] == said
    assert main(["explain", *asked]) == 0
    text = capsys.readouterr().out
    assert any(line.rstrip().endswith(said) for line in text.splitlines())
    assert ("has run on a card" in text) == (target != "cpu" and said != "ran on a card")
    assert ("cases of a_suite, by the device itself" in " ".join(text.split())) == (said != "declared")
    assert ("commit 012345678" in text) == (said != "declared")


def test_one_call_that_is_not_proved_holds_a_backend_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = tuple(evidence(**CARD, call=call, state="emulated") for call in CALLS if call != "merge_states")
    monkeypatch.setattr("hal.matrix.proof.read_evidence", lambda: known)
    asked = [write(tmp_path, SHORT), "--device", "sm_90", "--software", "none"]
    proof = explain_json(capsys, *asked)["devices"][0]["layers"][0]["proof"]
    assert (proof["state"], proof["calls"]["paged_attention.decode"]) == ("declared", "emulated")
    assert main(["explain", *asked]) == 0
    assert "declared, no more than that for merge_states" in capsys.readouterr().out
