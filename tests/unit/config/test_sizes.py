"""Bytes per token and per sequence, on one rank, for every layout; capacity as the inverse; the printed table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.config import read_shape

BASE = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 100}
V3 = {"num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "vocab_size": 129280, "kv_lora_rank": 512}
V3 |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V32 = V3 | {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
V4 = BASE | {"head_dim": 512, "num_key_value_heads": 1, "compress_ratios": [0, 4, 128, 4], "sliding_window": 128}
V4 |= {"qk_rope_head_dim": 64, "index_topk": 512, "index_n_heads": 64, "index_head_dim": 128}


@pytest.mark.parametrize(
    ("layout", "dtype", "per_layer"),
    [
        ("auto", "bfloat16", 1152),
        ("latent", "float32", 2304),
        ("latent_fp8", "bfloat16", 576),
        ("fp8_ds_mla", "bfloat16", 656),
    ],
)
@pytest.mark.parametrize("tp", [1, 8])
def test_latent_bytes_are_replicated(layout: str, dtype: str, per_layer: int, tp: int) -> None:
    assert read_shape(V3).kv_bytes_per_token(layout, dtype, tp) == 61 * per_layer


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_kv_heads_are_divided_or_replicated(tp: int, heads: int) -> None:
    shape = read_shape(BASE | {"num_key_value_heads": 8})
    assert shape.kv_bytes_per_token(tp=tp) == 4 * heads * 16 * 2
    assert shape.kv_bytes_per_token("kv_fp8", tp=tp) == 4 * heads * 16


@pytest.mark.parametrize(
    ("config", "layout"),
    [(BASE, "latent"), (V3, "kv"), (V4, "kv"), (BASE, "nonsense")],
    ids=["gqa", "mla", "compressed", "unknown"],
)
def test_layouts_that_do_not_fit_are_errors(config: dict[str, Any], layout: str) -> None:
    with pytest.raises(ValueError, match=layout):
        read_shape(config).kv_bytes_per_token(layout)


def test_index_keys() -> None:
    shape = read_shape(V32)
    assert shape.index_bytes_per_token() == 61 * 256
    assert shape.index_bytes_per_token("indexer_fp8") == 61 * 132


def test_compressed_row() -> None:
    assert read_shape(V4).layers[0].kv_bytes_per_token("compressed") == 584


def test_a_sequence_of_a_compressed_model() -> None:
    rows = 4 * 128 + 2 * (1000 // 4) + 1000 // 128
    assert read_shape(V4).kv_bytes(1000) == rows * 1024 + 2 * (1000 // 4) * 256


def test_capacity_of_mixed_layers() -> None:
    """One full and one window(4) layer with room for 100 rows: 96 tokens, not 50."""
    mixed = BASE | {"num_hidden_layers": 2, "sliding_window": 4, "max_window_layers": 1}
    shape = read_shape(mixed)
    row = shape.layers[0].kv_bytes_per_token()
    assert shape.max_tokens(100 * row) == 96
    assert shape.max_tokens(7 * row) == 3
    assert shape.max_tokens(100 * row, num_seqs=2) == 46
    assert read_shape(mixed | {"max_window_layers": 0}).max_tokens(100 * row) is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from([BASE, BASE | {"sliding_window": 9, "max_window_layers": 2}, V32, V4]), st.integers(0, 2**34))
def test_capacity_is_the_inverse_of_the_size(config: dict[str, Any], memory: int) -> None:
    shape = read_shape(config)
    length = shape.max_tokens(memory)
    assert length is not None
    assert shape.kv_bytes(length) <= memory < shape.kv_bytes(length + 1)


def test_shared_and_missing_kv_takes_nothing() -> None:
    shape = read_shape(BASE | {"kv_source_layers": [0, 0, 0, 3], "layer_types": ["full_attention"] * 3 + ["linear_attention"]})
    assert shape.kv_bytes(10) == 10 * shape.layers[0].kv_bytes_per_token()


def test_table_groups_equal_layers() -> None:
    shape = read_shape(
        V32 | {"index_topk_freq": 4, "index_skip_topk_offset": 3, "num_nextn_predict_layers": 1, "model_type": "x"}
    )
    lines = str(shape).splitlines()
    assert lines[0] == "x, 61 layers, hidden 7168, vocabulary 129280, dtype open"
    assert lines[2].startswith("0-2, 6, .., 58")
    assert "top 2048 reused" in lines[3]
    assert lines[4].startswith("draft 61")
    assert len(lines) == 5
    assert max(map(len, lines)) <= 100
