"""hal explain: the sizes it states, the reasons it groups, the width it keeps."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hal
from hal.cli import main
from hal.cli.explain_answer import LayerAnswer
from hal.cli.explain_view import group_refusals
from hal.common.backends.registry import backends
from hal.common.contract.reason import Reason
from hal.config import LayerShape, read_shape

COMPOSITE = Path(__file__).parents[3] / "examples" / "composite-deepseek-v3.2.json"
LATENT_BYTES = 61 * (512 + 64) * 2
INDEX_BYTES = 61 * 128 * 2
LONG = ("--max-model-len", "10000000")
"""More than any memory here holds, so that memory and not the model bounds a request."""
TARGETS = ("cuda:sm_90", "rocm:gfx942", "xpu:pvc", "cpu")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", str(COMPOSITE), *arguments]) == 0
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run(capsys, *arguments, "--json"))
    return report


def test_sizes_are_those_of_the_sparse_model(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, "--device", "cpu", "--memory", "80", *LONG)
    assert report["model"]["index_topk"] == 2048
    (device,) = report["devices"]
    assert (device["kv_bytes_per_token"], device["index_bytes_per_token"]) == (LATENT_BYTES, INDEX_BYTES)
    room = 80 * 10**9 - device["workspace_bytes"]
    page = device["layers"][0]["block_size"]
    assert device["capacity"] == {
        "memory_bytes": 80 * 10**9,
        "taken_bytes": device["workspace_bytes"],
        "num_seqs": 64,
        "max_model_len": 10_000_000,
        "one_request": room // (LATENT_BYTES + INDEX_BYTES),
        "each_request": room // 64 // (LATENT_BYTES + INDEX_BYTES),
        "pool_tokens": room // ((LATENT_BYTES + INDEX_BYTES) * page) * page,
        "group_pool_tokens": None,
    }


def test_a_quantised_layout_takes_its_index_keys_along(capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = run_json(capsys, "--device", "cpu", "--memory", "80", *LONG, "--kv-layout", "fp8_ds_mla")["devices"]
    assert (device["kv_bytes_per_token"], device["index_bytes_per_token"]) == (61 * 656, 61 * 132)
    assert device["capacity"]["one_request"] == (80 * 10**9 - device["workspace_bytes"]) // (61 * (656 + 132))
    layer = device["layers"][0]
    assert (layer["kv_layout"], layer["index_layout"]) == ("fp8_ds_mla", "indexer_fp8")
    assert "656 + 132 B" in run(capsys, "--device", "cpu", "--kv-layout", "fp8_ds_mla")


def test_every_target_answers_and_accounts_for_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *(word for target in TARGETS for word in ("--device", target)))
    assert [device["target"] for device in report["devices"]] == list(TARGETS)
    for device in report["devices"]:
        layer, draft = device["layers"]
        assert draft["draft"]
        assert {layer["backend"], *layer["also_able"], *layer["rejected"]} - {None} == set(backends())
        assert layer["layer_ids"] == list(range(61))


def test_unserved_target_still_has_sizes_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--device", "gfx942", "--backend", "cpu", "--memory", "1", "--allow-unserved")
    (device,) = run_json(capsys, *asked)["devices"]
    assert not device["served"]
    assert device["workspace_bytes"] is None
    assert device["capacity"]["one_request"] == 10**9 // (LATENT_BYTES + INDEX_BYTES)
    assert device["capacity"]["pool_tokens"] is None
    assert [reason["code"] for reason in device["layers"][0]["rejected"]["cpu"]] == ["platform"]


def refused(**rejected: tuple[Reason, ...]) -> LayerAnswer:
    layer = LayerShape(layer_id=0, kind="attention", num_heads=2, num_kv_heads=2, head_dim=64, v_head_dim=64)
    return LayerAnswer(layer=layer, layer_ids=(0,), family="attention", selection=None, rejected=rejected)


def test_equal_causes_are_said_once() -> None:
    absent = Reason("library_absent", "nothing", "a_library")
    layer = refused(first=(absent,), second=(absent, Reason("window", 8, "full attention only")))
    other = replace(layer, layer_ids=(1,), rejected={"first": (absent,), "third": (Reason("platform", "cpu", "other"),)})
    shared, own, foreign = group_refusals([layer, other])
    assert shared == {("", absent): ["first", "second"]}
    assert own == {("layers 0: ", Reason("window", 8, "full attention only")): ["second"]}
    assert foreign == ["third"]


def test_code_that_is_not_written_reads_alike_for_all_backends() -> None:
    layer = refused(**{name: (Reason("not_built", name, "code"),) for name in ("first", "second")})
    shared, _, _ = group_refusals([layer])
    ((_, reason),) = shared
    assert shared["", reason] == ["first", "second"]
    assert reason.render(["first", "second"]) == "their code is not written yet"


def test_latent_is_replicated_over_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = run_json(capsys, "--device", "cpu", "--tp", "8")["devices"]
    assert device["kv_bytes_per_token"] == LATENT_BYTES


def test_ranks_that_share_tokens_hold_a_request_together(capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = run_json(capsys, "--device", "cpu", "--memory", "40", "--dcp", "4", *LONG)["devices"]
    assert device["kv_bytes_per_token"] == LATENT_BYTES
    room, page = 40 * 10**9 - device["workspace_bytes"], device["layers"][0]["block_size"]
    assert device["capacity"]["one_request"] == 4 * room // (LATENT_BYTES + INDEX_BYTES)
    assert device["capacity"]["pool_tokens"] == room // ((LATENT_BYTES + INDEX_BYTES) * page) * page * 4


def test_tp_that_divides_nothing_is_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = run_json(capsys, "--device", "cpu", "--tp", "3", "--allow-unserved")["devices"]
    assert [reason["code"] for reason in device["layers"][0]["rejected"]["cpu"]] == ["heads"]


def test_text_fits_in_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, *(word for target in TARGETS for word in ("--device", target)), "--memory", "80")
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "Traceback" not in text


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Three layers with a window of 8 and three full ones, in turn, and a draft layer after them."""
    config = {
        "model_type": "sample",
        "num_hidden_layers": 6,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 10,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_nextn_predict_layers": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_model_with_windows_fits_longer_requests_than_its_pages_hold(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", str(mixed), "--device", "cpu", "--memory", "2", *LONG]
    assert main([*asked, "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    capacity, room = device["capacity"], 2 * 10**9 - device["workspace_bytes"]
    shape = read_shape(mixed)
    assert shape.kv_bytes(capacity["one_request"]) <= room < shape.kv_bytes(capacity["one_request"] + 1)
    assert 64 * shape.kv_bytes(capacity["each_request"]) <= room < 64 * shape.kv_bytes(capacity["each_request"] + 1)
    assert capacity["pool_tokens"] * shape.kv_bytes_per_token() <= room
    assert capacity["one_request"] > 1.9 * capacity["pool_tokens"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert f"one request of {capacity['one_request']:,} tokens, or 64 of {capacity['each_request']:,} each" in text
    assert f"{capacity['pool_tokens']:,} tokens over all requests" in text


def test_a_pool_per_group_holds_more_where_windows_give_pages_back(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", str(mixed), "--device", "cpu", "--memory", "0.1", "--max-num-seqs", "8", "--max-model-len", "100000"]
    assert main([*arguments, "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    capacity = device["capacity"]
    assert capacity["pool_tokens"] < capacity["group_pool_tokens"] < 2 * capacity["pool_tokens"]
    assert main(arguments) == 0
    assert f"{capacity['group_pool_tokens']:,} tokens over all requests, since windows" in capsys.readouterr().out


@pytest.fixture
def compressed(tmp_path: Path) -> Path:
    """A layer that keeps its window alone, one with an entry per 4 tokens and an indexer, one with an entry per 128."""
    config = {
        "model_type": "sample",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "qk_rope_head_dim": 16,
        "vocab_size": 10,
        "sliding_window": 16,
        "compress_ratios": [0, 4, 128],
        "index_topk": 8,
        "index_n_heads": 2,
        "index_head_dim": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_every_layer_is_shown_with_the_page_of_the_plan(compressed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(compressed), "--device", "cpu", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    made = hal.plan(read_shape(compressed), "cpu")
    assert len({layer["family"] for layer in device["layers"]}) == 1
    assert {layer["block_size"] for layer in device["layers"]} == {made.block_size}
    alone = [hal.select(hal.Request(layer, made.device, made.dtype)).block_size for layer in made.shape.layers]
    assert len(set(alone)) > 1


def test_sizes_say_what_they_count_in_full(compressed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(compressed), "--device", "cpu"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "windows and compressed layers counted in full" in text
    assert f"{hal.plan(read_shape(compressed), 'cpu').bytes_per_token:,} B per token, with the entries" in text
    assert "counted in full" not in run(capsys, "--device", "cpu")


@pytest.mark.parametrize(("kv_layout", "kv_bytes"), [("latent_fp8", 576), ("fp8_ds_mla", 656)], ids=["latent_fp8", "fp8_ds_mla"])
def test_a_layout_is_asked_for_by_name(kv_layout: str, kv_bytes: int, capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = run_json(capsys, "--device", "cpu", "--kv-layout", kv_layout)["devices"]
    layer = device["layers"][0]
    assert (layer["kv_layout"], layer["index_layout"]) == (kv_layout, "indexer_fp8")
    assert device["kv_bytes_per_token"] == 61 * kv_bytes


def test_draft_layers_have_a_row(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(mixed), "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "draft layer 6 " in text
    assert re.search("draft 6 attention +cpu", text)
    assert "128 B more, in no other size here" in text
    assert main(["explain", str(mixed), "--device", "cpu", "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["devices"][0]["layers"]
    assert [(layer["draft"], layer["layer_ids"], layer["backend"]) for layer in layers][-1] == (True, [6], "cpu")


DECLARED = ("--software", "flash_attn_3=3.0.0, aiter=0.1.21.post2", "--software", "vllm_xpu_kernels=0.1.16.2")


def test_declared_libraries_are_what_selection_sees(capsys: pytest.CaptureFixture[str]) -> None:
    software = hal.Software({"flash_attn_3": "3.0.0", "aiter": "0.1.21.post2", "vllm_xpu_kernels": "0.1.16.2"})
    layer = read_shape(COMPOSITE).layer(0)
    devices = run_json(capsys, "--tp", "8", *DECLARED, *(word for target in TARGETS for word in ("--device", target)))["devices"]
    for device in devices[:3]:
        assert device["software"] == dict(software.versions)
        target = hal.Device.from_arch(device["target"])
        answer = hal.select(hal.Request(layer, target, "bfloat16", parallel=hal.Parallel(tp=8), software=software))
        assert (device["layers"][0]["backend"], device["layers"][0]["providers"]) == (answer.backend, dict(answer.providers))
    assert devices[3]["software"] == dict(hal.installed().versions)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "every vendor library is assumed to be installed"),
        (("--software", "none"), "declared as installed: no vendor library"),
        (("--software", "flash_attn_3=3.0.0"), "declared as installed: flash_attn_3 3.0.0"),
    ],
    ids=["assumed", "none", "one"],
)
def test_what_is_taken_as_installed_is_said(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in run(capsys, "--device", "sm_90", *arguments)
    assert sentence not in run(capsys, "--device", "cpu", *arguments)


def test_layers_that_differ_are_told_apart(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(mixed), "--device", "cpu", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert [layer["layer_ids"] for layer in device["layers"] if not layer["draft"]] == [[0, 2, 4], [1, 3, 5]]
