"""kv_layout="fp8" is each layer's own fp8 layout, in shapes, requests, plans and what the command line says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hal
from hal.cli import main
from hal.config import read_shape

COMMON = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10, "max_position_embeddings": 256}
LATENT = {"kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "q_lora_rank": 32}
INDEXED = {**LATENT, "index_topk": 8, "index_n_heads": 2, "index_head_dim": 32}
PACKED = 128 + 128 // 128 * 4 + 16 * 2
KINDS: dict[str, tuple[dict[str, Any], str, int, int]] = {
    "attention": ({"num_key_value_heads": 2}, "kv_fp8", 2 * (16 + 16), 0),
    "mla": (LATENT, "latent_fp8", 128 + 16, 0),
    "sparse_mla": (INDEXED, "fp8_ds_mla", PACKED, 32 + 4),
    "compressed": (
        {"head_dim": 64, "qk_rope_head_dim": 16, "num_key_value_heads": 1, "sliding_window": 16, "compress_ratios": [0, 4]},
        "compressed",
        48 + 2 * 16 + 8,
        0,
    ),
}


@pytest.mark.parametrize(("config", "layout", "kv_bytes", "index_bytes"), KINDS.values(), ids=KINDS)
def test_every_kind_of_layer_has_its_own(config: dict[str, Any], layout: str, kv_bytes: int, index_bytes: int) -> None:
    shape = read_shape({"model_type": "sample", **COMMON, **config})
    cpu = hal.Device.from_arch("cpu")
    for layer in shape.layers:
        assert shape.layout_of(layer, "fp8") == layer.resolve_layout("fp8") == layout
        assert hal.Request(layer, cpu, "float32", "fp8") == hal.Request(layer, cpu, "float32", layout)
        assert (layer.kv_bytes_per_token("fp8"), layer.index_bytes_per_token("fp8")) == (kv_bytes, index_bytes)
    assert shape.kv_bytes_per_token("fp8") == 2 * kv_bytes
    made = hal.plan(shape, cpu, kv_layout="fp8", dtype="float32")
    assert {selection.kv_layout for selection in made.selections if selection is not None} == {layout}
    assert made.cache_specs() == hal.plan(shape, cpu, kv_layout=layout, dtype="float32").cache_specs()


def test_a_model_of_two_kinds_has_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "sample", **COMMON, "layer_types": ["full_attention", "linear_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["explain", str(tmp_path), "--device", "cpu", "--kv-layout", "fp8", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert [layer["kv_layout"] for layer in device["layers"]] == ["kv_fp8", None]


def test_a_backend_without_it_says_which_layout_it_lacks() -> None:
    layer = read_shape({"model_type": "sample", **COMMON, **INDEXED}).layer(0)
    request = hal.Request(layer, hal.Device.from_arch("sm_90"), "bfloat16", "fp8")
    reasons = {reason.code: reason for reason in hal.supports_combination(request)["cuda:flash_attention"]}
    assert reasons["kv_layout"].have == "fp8_ds_mla"
