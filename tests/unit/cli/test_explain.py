"""hal explain: the sizes it states, the reasons it groups, the width it keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hal.cli import main
from hal.cli.explain import LayerAnswer
from hal.cli.explain_view import group_refusals
from hal.common.reason import Reason
from hal.common.registry import backends
from hal.config import LayerShape

COMPOSITE = Path(__file__).parents[3] / "examples" / "composite-deepseek-v3.2.json"
LATENT_BYTES = 61 * (512 + 64) * 2
INDEX_BYTES = 61 * 128 * 2
TARGETS = ("cuda:sm_90", "rocm:gfx942", "xpu:pvc", "cpu")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", str(COMPOSITE), *arguments]) == 0
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run(capsys, *arguments, "--json"))
    return report


def test_sizes_are_those_of_the_sparse_model(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, "--device", "cpu", "--memory", "80")
    assert report["model"]["index_topk"] == 2048
    (device,) = report["devices"]
    assert (device["kv_bytes_per_token"], device["index_bytes_per_token"]) == (LATENT_BYTES, INDEX_BYTES)
    room = 80 * 10**9 - device["workspace_bytes"]
    page = device["layers"][0]["block_size"]
    assert device["max_tokens"] == room // ((LATENT_BYTES + INDEX_BYTES) * page) * page


def test_every_target_answers_and_accounts_for_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *(word for target in TARGETS for word in ("--device", target)))
    assert [device["target"] for device in report["devices"]] == list(TARGETS)
    for device in report["devices"]:
        (layer,) = device["layers"]
        assert {layer["backend"], *layer["also_able"], *layer["rejected"]} - {None} == set(backends())
        assert layer["layer_ids"] == list(range(61))


def test_unserved_target_still_has_sizes_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = run_json(capsys, "--device", "gfx942", "--backend", "cpu", "--memory", "1")["devices"]
    assert not device["served"]
    assert device["workspace_bytes"] is None
    assert device["max_tokens"] == 10**9 // (LATENT_BYTES + INDEX_BYTES)
    assert [reason["code"] for reason in device["layers"][0]["rejected"]["cpu"]] == ["platform"]


def refused(**rejected: tuple[Reason, ...]) -> LayerAnswer:
    layer = LayerShape(layer_id=0, kind="attention", num_heads=2, num_kv_heads=2, head_dim=64, v_head_dim=64)
    return LayerAnswer(layer=layer, layer_ids=(0,), family="attention", selection=None, rejected=rejected)


def test_equal_causes_are_said_once() -> None:
    absent = Reason("library_absent", "nothing", "a_library")
    layer = refused(first=(absent,), second=(absent, Reason("window", 8, "full attention only")))
    other = replace(layer, layer_ids=(1,), rejected={"first": (absent,), "third": (Reason("platform", "cpu", "other"),)})
    shared, own, foreign = group_refusals([layer, other])
    assert shared == {str(absent): ["first", "second"]}
    assert own == {"layers 0: a window of 8 keys, it takes full attention only": ["second"]}
    assert foreign == ["third"]


def test_code_that_is_not_written_reads_alike_for_all_backends() -> None:
    layer = refused(**{name: (Reason("not_built", name, "code"),) for name in ("first", "second")})
    shared, _, _ = group_refusals([layer])
    assert shared == {"its code is not written yet": ["first", "second"]}


def test_latent_is_replicated_over_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = run_json(capsys, "--device", "cpu", "--tp", "8")["devices"]
    assert device["kv_bytes_per_token"] == LATENT_BYTES


def test_tp_that_divides_nothing_is_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = run_json(capsys, "--device", "cpu", "--tp", "3")["devices"]
    assert [reason["code"] for reason in device["layers"][0]["rejected"]["cpu"]] == ["heads"]


def test_text_fits_in_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, *(word for target in TARGETS for word in ("--device", target)), "--memory", "80")
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "Traceback" not in text


def test_layers_that_differ_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "sample",
        "num_hidden_layers": 6,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 10,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["explain", str(tmp_path), "--device", "cpu", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert [layer["layer_ids"] for layer in device["layers"]] == [[0, 2, 4], [1, 3, 5]]
