"""Bytes per token and per sequence, on one rank, for every layout; capacity as the inverse; the printed table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.config import HalError, ModelShape, read_shape
from hal.config.dtypes import model_dtype_name
from hal.config.errors import InputError

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
    with pytest.raises(InputError, match=layout):
        read_shape(config).kv_bytes_per_token(layout)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda shape: shape.kv_bytes(-1), "length is -1"),
        (lambda shape: shape.max_tokens(10**9, num_seqs=0), "num_seqs is 0"),
        (lambda shape: shape.kv_bytes_per_token(tp=0), "tp is 0"),
        (lambda shape: shape.kv_bytes_per_token(tp=3), "2 KV heads.*3 ranks"),
        (lambda shape: shape.kv_bytes_per_token(dtype="bf16"), "unknown dtype 'bf16'.*did you mean"),
    ],
    ids=["length", "sequences", "no-ranks", "ranks", "dtype"],
)
def test_questions_that_make_no_sense_are_input_errors(call: Callable[[ModelShape], object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        call(read_shape(BASE))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "uint8", "int8", None], ids=str)
def test_types_for_storage_are_not_offered_to_models(name: object) -> None:
    with pytest.raises(InputError, match=r"expected one of float16, bfloat16, float32, float64$"):
        model_dtype_name(name)


def test_a_layer_that_is_not_there_is_an_index_error_of_hals() -> None:
    with pytest.raises(IndexError, match=r"layer 99.*ids 0 to 3") as caught:
        read_shape(BASE).layer(99)
    assert isinstance(caught.value, HalError)


def test_bytes_of_index_keys_are_those_of_their_layout() -> None:
    shape = read_shape(V32)
    assert shape.index_bytes_per_token() == 61 * 256
    assert shape.index_bytes_per_token("indexer_fp8") == 61 * 132


def test_a_compressed_row_takes_584_bytes() -> None:
    assert read_shape(V4).layers[0].kv_bytes_per_token("compressed") == 584


def test_a_sequence_of_a_compressed_model() -> None:
    rows = 4 * 128 + 2 * (1000 // 4) + 1000 // 128
    assert read_shape(V4).kv_bytes(1000) == rows * 1024 + 2 * (1000 // 4) * 256


def test_windows_of_mixed_layers_leave_room_for_more_tokens() -> None:
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
    assert lines[0] == "x, 61 layers, hidden 7168, vocabulary 129280, dtype open, B/token in bfloat16"
    assert lines[2].startswith("0-2, 6-58 by 4")
    assert "top 2048 reused" in lines[3]
    assert lines[4].startswith("draft 61")
    assert len(lines) == 5
    assert max(map(len, lines)) <= 100
