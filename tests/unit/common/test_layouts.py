"""What a cached token takes, and how wide a block table is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common.contract.layouts import Layout, block_table_width, index_layout, layer_index_layout, layer_layout
from hal.common.contract.layouts.parse import parse_layout

from .helpers.fakes import gqa_layer, mla_layer, sparse_layer

BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("layer", "dtype", "tp", "name", "nbytes"),
    [
        (gqa_layer(), "bfloat16", 1, "kv", 2 * 128 * 2),
        (gqa_layer(v_head_dim=32), "float32", 1, "kv", 2 * 96 * 4),
        (gqa_layer(num_kv_heads=8), "bfloat16", 4, "kv", 2 * 128 * 2),
        (gqa_layer(num_kv_heads=8, num_heads=16), "bfloat16", 16, "kv", 128 * 2),
        (mla_layer(), "bfloat16", 1, "latent", 1152),
        (mla_layer(), "float16", 8, "latent", 1152),
        (sparse_layer(), "float32", 1, "latent", 2304),
    ],
    ids=["gqa", "uneven", "divided", "replicated", "mla", "mla_tp8", "sparse_fp32"],
)
def test_a_layout_and_the_shape_agree_on_the_bytes_of_a_token(layer, dtype: str, tp: int, name: str, nbytes: int) -> None:
    layout = layer_layout(layer, "auto", dtype, tp)
    assert layout == layer_layout(layer, name, dtype, tp)
    assert (layout.name, layout.bytes_per_token) == (name, nbytes)
    assert layout.page_bytes(64) == 64 * nbytes
    assert nbytes == layer.kv_bytes_per_token("auto", dtype, tp)


def test_the_layout_of_index_keys_follows_the_layer() -> None:
    layout = layer_index_layout(sparse_layer(), "bfloat16")
    assert layout == index_layout(128, "bfloat16")
    assert layout.bytes_per_token == 256 == sparse_layer().index_bytes_per_token("auto", "bfloat16")


@pytest.mark.parametrize("layer", [mla_layer(), sparse_layer(owns=False), gqa_layer()], ids=["mla", "shared", "gqa"])
def test_a_layer_without_an_indexer_of_its_own_has_no_index_keys(layer) -> None:
    with pytest.raises(hal.LayoutError, match="layer 0"):
        layer_index_layout(layer, "bfloat16")


@pytest.mark.parametrize(
    ("layer", "layout"),
    [(gqa_layer(3), "latent"), (mla_layer(3), "kv"), (gqa_layer(3), "indexer"), (gqa_layer(3), "nonsense")],
    ids=["latent", "kv", "indexer", "nonsense"],
)
def test_a_layout_of_another_kind_is_refused(layer, layout: str) -> None:
    with pytest.raises(hal.LayoutError, match=f"layer 3.*'{layout}'"):
        layer_layout(layer, layout, "bfloat16")


@pytest.mark.parametrize(
    ("max_model_len", "block_size", "dcp", "width"),
    [
        (9416, 32, 1, 296),
        (480000, 64, 4, 1876),
        (1, 16, 1, 8),
        (128, 16, 1, 8),
        (129, 16, 1, 16),
        (1024, 256, 1, 4),
        (32, 16, 2, 8),
        (100, 1, 1, 128),
    ],
)
def test_the_width_of_a_table_is_the_one_worked_out_by_hand(max_model_len: int, block_size: int, dcp: int, width: int) -> None:
    assert block_table_width(max_model_len, block_size, dcp) == width


@BOUNDED
@given(
    max_model_len=st.integers(1, 10**6), block_size=st.sampled_from([1, 16, 32, 48, 64, 128, 256, 1024]), dcp=st.integers(1, 8)
)
def test_a_table_holds_the_longest_request_and_is_padded_least(max_model_len: int, block_size: int, dcp: int) -> None:
    width = block_table_width(max_model_len, block_size, dcp)
    needed = -(-max_model_len // (block_size * dcp))
    assert width >= needed
    assert (width - needed) * block_size < 128 or width == needed
    if 128 % block_size == 0:
        assert width * block_size % 128 == 0


@BOUNDED
@given(
    name=st.text(max_size=8),
    dtype=st.sampled_from(["float32", "bfloat16", "uint8"]),
    parts=st.lists(st.lists(st.integers(0, 600), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
)
def test_a_layout_of_any_parts_is_read_back_from_its_description(
    name: str, dtype: str, parts: tuple[tuple[int, ...], ...]
) -> None:
    layout = Layout(name=name, dtype=dtype, parts=parts)
    assert parse_layout(layout.description) == layout
