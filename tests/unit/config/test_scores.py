"""Windows, chunks, indexers, scales, biases, draft layers: what decides which keys count and how much."""

from __future__ import annotations

from typing import Any

import pytest

from hal.config import ConfigError, IndexerShape, LayerShape, read_shape

BASE = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
SPARSE = BASE | MLA | {"index_topk": 2048, "index_n_heads": 4, "index_head_dim": 16}
FULL, SLIDING = "full_attention", "sliding_attention"


def layers(**fields: Any) -> tuple[LayerShape, ...]:
    return read_shape(BASE | fields).layers


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"sliding_window": 8}, [8] * 4),
        ({"sliding_window": 0}, [None] * 4),
        ({"sliding_window": -1}, [None] * 4),
        ({"sliding_window": 1}, [1] * 4),
        ({"sliding_window": 8, "use_sliding_window": False}, [None] * 4),
        ({"sliding_window": 8, "max_window_layers": 2}, [None, None, 8, 8]),
        ({"sliding_window": 8, "max_window_layers": 0}, [8] * 4),
        ({"sliding_window": 8, "max_window_layers": 2, "layer_types": [SLIDING, FULL, FULL, SLIDING]}, [8, None, None, 8]),
        ({"sliding_window": [8, None]}, [8, None, 8, None]),
        ({"sliding_window": [8, None, None, None]}, [8, None, None, None]),
        ({"sliding_window": 8, "sliding_window_pattern": 2}, [8, None, 8, None]),
        ({"sliding_window": 8, "sliding_window_pattern": "LG"}, [8, None, 8, None]),
        ({"sliding_window": 8, "hybrid_layer_pattern": [0, 1, 1, 0]}, [None, 8, 8, None]),
        ({"sliding_window": 8, "local_layer_ids": [1]}, [None, 8, None, None]),
        ({"window_size": 8, "attention_layers": ["global", "local"] * 2}, [None, 8, None, 8]),
        ({"window_size": 8, "attention_types": [[["global", "local"], 2]]}, [None, 8, None, 8]),
        ({"sliding_window": None, "layer_types": [SLIDING] * 4}, [None] * 4),
    ],
)
def test_each_layer_gets_its_window(fields: dict[str, Any], windows: list[int | None]) -> None:
    assert [layer.window for layer in layers(**fields)] == windows


def test_a_window_that_reaches_no_layer_is_a_warning() -> None:
    shape = read_shape(BASE | {"sliding_window": 2048, "max_window_layers": 28})
    assert shape.layers[0].window is None
    assert "max_window_layers 28 leaves none of 4 layers" in shape.warnings[0]


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"layer_types": ["linear_attention", FULL, "conv", "mamba"]}, "NAN N"),
        ({"hybrid_override_pattern": "M*-E"}, "NANN"),
        ({"attn_type_list": [0, 1, 0, 1]}, "NANA"),
        ({"full_attention_interval": 4}, "NNNA"),
        ({"layer_group_size": 2}, "NANA"),
        ({"attn_layer_period": 2, "attn_layer_offset": 1}, "NANA"),
        ({"full_attn_idxs": [0]}, "ANNN"),
        ({"linear_attn_config": {"full_attn_layers": [1, 4], "kda_layers": [2, 3]}}, "ANNA"),
        ({"block_types": ["recurrent", "attention"]}, "NANA"),
        ({"cross_attention_layers": [1]}, "ACAA"),
    ],
)
def test_each_layer_gets_its_kind(fields: dict[str, Any], kinds: str) -> None:
    letters = {"attention": "A", "none": "N", "cross": "C"}
    assert [letters[layer.kind] for layer in layers(**fields)] == list(kinds.replace(" ", ""))


def test_a_model_without_attention_caches_nothing() -> None:
    shape = read_shape({"num_hidden_layers": 3, "hidden_size": 64, "vocab_size": 10, "state_size": 16})
    assert {layer.kind for layer in shape.layers} == {"none"}
    assert shape.kv_bytes_per_token() == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layer_types": [FULL] * 3}, "layer_types has 3 entries, expected 4"),
        ({"layer_types": [FULL] * 3 + ["strange"]}, "'strange', which is no known layer type"),
        ({"layer_types": "full"}, "layer_types is 'full', expected a list"),
        ({"layer_types": [SLIDING] * 4}, "sliding_window is unset"),
        ({"layer_types": ["chunked_attention"] * 4}, "attention_chunk_size is unset"),
        ({"hybrid_override_pattern": "M*?E"}, "'\\?'"),
        ({"hybrid_override_pattern": "M*"}, "has 2 entries, expected 4"),
        ({"sliding_window": [8, None, 8]}, "sliding_window has 3 entries"),
        ({"cross_attention_layers": ["a"]}, "expected layer numbers"),
        ({"num_hidden_layers": 10**6}, "at most 10000"),
    ],
    ids=str,
)
def test_layer_lists_that_do_not_fit(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_shape(BASE | fields)


def test_only_layers_with_rope_are_chunked() -> None:
    by_interval = layers(attention_chunk_size=128, no_rope_layers=[], no_rope_layer_interval=4)
    assert [layer.chunk for layer in by_interval] == [128, 128, 128, None]
    assert [layer.chunk for layer in layers(attention_chunk_size=128, no_rope_layers=[1, 0, 1, 0])] == [128, None, 128, None]
    assert [layer.chunk for layer in layers(attention_chunk_size=128)] == [None] * 4


@pytest.mark.parametrize(
    ("fields", "owners"),
    [
        ({}, [True] * 4),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, [True, False, True, False]),
        ({"index_topk_pattern": "FSSF"}, [True, False, False, True]),
        ({"index_topk_pattern": "FSSF", "index_topk_freq": 2}, [True, False, False, True]),
        ({"index_topk_freq": 2}, [True, True, False, True]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, [True, False, True, False]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [True, True, True, False]),
        ({"index_source_layer_ids": [0, 3]}, [True, False, False, True]),
    ],
    ids=str,
)
def test_the_layers_that_own_an_indexer_are_known(fields: dict[str, Any], owners: list[bool]) -> None:
    shape = read_shape(SPARSE | fields)
    assert [layer.indexer.owns if layer.indexer else None for layer in shape.layers] == owners
    assert shape.index_bytes_per_token() == sum(owners) * 16 * 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"indexer_types": ["shared"] * 4}, "layer 0 shares"),
        ({"indexer_types": ["full", "other", "full", "full"]}, "'other'"),
        ({"indexer_types": ["full"]}, "has 1 entries"),
        ({"index_topk_pattern": "FS"}, "has 2 entries"),
        ({"index_head_dim": 0}, "index_head_dim is unset"),
        ({"index_n_heads": None}, "index_n_heads is unset"),
    ],
    ids=str,
)
def test_an_impossible_indexer_is_a_config_error(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_shape(SPARSE | fields)


@pytest.mark.parametrize(("topk", "pool", "width"), [(2048, 1, 2048), (2048, 16, 2176), (2048, 4, 2176), (100, 2, 128)])
def test_a_choice_is_as_wide_as_its_pools_need(topk: int, pool: int, width: int) -> None:
    assert IndexerShape(topk=topk, num_heads=1, head_dim=16, pool=pool).width == width


def test_layers_named_sparse_are_the_ones_that_pick() -> None:
    types = ["indexed_attention", SLIDING, "indexed_attention", SLIDING]
    shape = read_shape(SPARSE | {"layer_types": types, "sliding_window": 8})
    assert [layer.indexer is not None for layer in shape.layers] == [True, False, True, False]


def test_draft_layers_own_their_cache_and_indexer() -> None:
    shape = read_shape(SPARSE | {"indexer_types": ["full", "shared", "full", "shared"], "num_nextn_predict_layers": 2})
    assert [layer.layer_id for layer in shape.draft_layers] == [4, 5]
    assert shape.layer(4).indexer is not None
    assert shape.layer(4).owns_kv
    assert shape.layer(4).indexer.owns  # type: ignore[union-attr]
    assert shape.num_layers == 4
    with pytest.raises(IndexError, match="ids 0 to 3, and 2 draft layers"):
        shape.layer(6)


def test_entries_behind_the_decoder_are_the_draft_layers() -> None:
    shape = read_shape(BASE | {"layer_types": [FULL] * 4 + [SLIDING], "sliding_window": 8, "num_nextn_predict_layers": 1})
    assert [layer.window for layer in (*shape.layers, *shape.draft_layers)] == [None] * 4 + [8]


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({}, 0.25),
        ({"query_pre_attn_scalar": 64}, 0.125),
        ({"attention_multiplier": 0.03}, 0.03),
        ({"scale_attn_weights": False}, 1.0),
        ({"attn_config": {"softmax_scale": 0.5}}, 0.5),
        ({"attn_config": {"softmax_scale": None}}, 0.25),
        (MLA, 24**-0.5),
        (MLA | {"rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}}, 24**-0.5 * 1.3688879454113936**2),
        (MLA | {"rope_scaling": {"rope_type": "yarn", "factor": 40}}, 24**-0.5),
        (MLA | {"rope_parameters": {"rope_type": "default", "factor": 40, "mscale_all_dim": 1.0}}, 24**-0.5),
        (MLA | {"rope_scaling": None}, 24**-0.5),
    ],
    ids=str,
)
def test_the_softmax_scale_is_the_models_own(fields: dict[str, Any], scale: float) -> None:
    assert layers(**fields)[0].softmax_scale == pytest.approx(scale, rel=1e-12)


def test_a_scale_may_fall_with_depth() -> None:
    assert [layer.softmax_scale for layer in layers(scale_attn_by_inverse_layer_idx=True)] == [0.25, 0.125, 0.25 / 3, 0.0625]


@pytest.mark.parametrize(
    ("fields", "bias"),
    [
        ({}, None),
        ({"alibi": True}, "alibi"),
        ({"alibi": False}, None),
        ({"attn_config": {"alibi": True}}, "alibi"),
        ({"position_embedding_type": "alibi"}, "alibi"),
        ({"relative_attention_num_buckets": 32}, "relative"),
    ],
    ids=str,
)
def test_the_position_bias_is_known_by_kind(fields: dict[str, Any], bias: str | None) -> None:
    assert layers(**fields)[0].position_bias == bias


def test_sinks_stated_by_layer_type_are_those_layers_alone() -> None:
    fields = {"layer_types": [FULL, SLIDING] * 2, "sliding_window": 8}
    found = layers(**fields, add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False)
    assert [layer.sink for layer in found] == [False, True] * 2
    assert all(layer.sink for layer in layers(learnable_sink=True))


def test_layers_are_causal_unless_stated_otherwise() -> None:
    assert layers()[0].causal
    assert not layers(is_causal=False)[0].causal
    assert not layers(use_bidirectional_attention="all")[0].causal
    assert not layers(model_type="bert")[0].causal
    assert layers(model_type="bert", is_decoder=True)[0].causal
    assert layers(model_type="gpt_neox", is_decoder=False)[0].causal


def test_a_config_with_ratios_and_a_rank_has_compressed_layers() -> None:
    """A V4 config may still carry a KV rank from its ancestors."""
    fields = {
        "compress_ratios": [0, 4, 128, 4, 0],
        "head_dim": 32,
        "num_key_value_heads": 1,
        "qk_rope_head_dim": 8,
        "sliding_window": 16,
    }
    shape = read_shape(SPARSE | fields | {"num_nextn_predict_layers": 1})
    assert [layer.kind for layer in shape.layers] == ["compressed"] * 4
    assert [layer.compress_ratio for layer in shape.layers] == [0, 4, 128, 4]
    assert [layer.indexer is not None for layer in shape.layers] == [False, True, False, True]
    assert {layer.window for layer in shape.layers} == {16}
    assert {layer.rope_head_dim for layer in shape.layers} == {8}
    assert shape.draft_layers[0].compress_ratio == 0
    with pytest.raises(ConfigError, match="compress_ratios has 3 entries"):
        read_shape(SPARSE | fields | {"compress_ratios": [0, 4, 128]})


def test_compressed_layers_are_read_in_the_form_of_transformers() -> None:
    types = [SLIDING, "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}
    fields = {"layer_types": types, "compress_rates": rates, "head_dim": 32, "num_key_value_heads": 1, "sliding_window": 16}
    raw = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 16, "partial_rotary_factor": 0.25}
    shape = read_shape(BASE | fields | raw)
    assert [layer.compress_ratio for layer in shape.layers] == [0, 4, 16, 4]
    assert [layer.indexer is not None for layer in shape.layers] == [False, True, False, True]
    assert shape.layers[0].rope_head_dim == 8


@pytest.mark.parametrize("ratio", [1, 2, 4, 16])
def test_groups_of_picked_entries_overlap_at_any_ratio_of_a_layer_type(ratio: int) -> None:
    """The type says so; where ratios are listed, V4.1's of 1 and 2 stand apart."""
    types = ["compressed_sparse_attention", "heavily_compressed_attention", SLIDING, "compressed_sparse_attention"]
    rates = {"compressed_sparse_attention": ratio, "heavily_compressed_attention": ratio}
    common = {"head_dim": 32, "num_key_value_heads": 1, "sliding_window": 16, "index_topk": 4, "index_n_heads": 2}
    common |= {"index_head_dim": 16, "partial_rotary_factor": 0.25}
    typed = read_shape(BASE | common | {"layer_types": types, "compress_rates": rates})
    assert [layer.compress_span for layer in typed.layers] == [2 * ratio, ratio, 0, 2 * ratio]
    listed = read_shape(BASE | common | {"compress_ratios": [ratio, 128, 0, ratio]})
    span = ratio if ratio <= 2 else 2 * ratio
    assert [layer.compress_span for layer in listed.layers] == [span, 128, 0, span]


def test_block_sparse_layers_and_their_keys_are_known() -> None:
    group = {"sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_num_index_heads": 4, "sparse_index_dim": 32}
    shape = read_shape(BASE | {"sparse_attention_config": group | {"sparse_attention_freq": [0, 1, 1, 1]}})
    assert [layer.block_sparse is not None for layer in shape.layers] == [False, True, True, True]
    assert shape.is_block_sparse
    assert not shape.is_sparse
    assert shape.index_bytes_per_token() == 3 * 32 * 2
    fields = {"indexer_budget": 64, "indexer_compress_ratio": 4, "indexer_n_heads": 2, "indexer_head_dim": 16}
    blocks = read_shape(BASE | fields).layers[0].block_sparse
    assert blocks is not None
    assert (blocks.topk_blocks, blocks.block_size, blocks.tokens_per_key) == (16, 4, 4)
    with pytest.raises(ConfigError, match="indexer_budget is 63"):
        read_shape(BASE | fields | {"indexer_budget": 63})
