"""What a plan says of compressed layers: groups, page sizes, bytes, and what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import hal
from hal.config import read_shape

from .helpers.compressed_run import compressed, layers
from .helpers.shapes import model, sparse

RATIOS = [0, 4, 128, 4]
V4 = read_shape(
    {
        "model_type": "made_up",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "vocab_size": 100,
        "max_position_embeddings": 4096,
        "sliding_window": 128,
        "compress_ratios": RATIOS,
        "index_topk": 512,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "q_lora_rank": 64,
    }
)
LIMITS = hal.Limits(4096, 4, 512)


def planned(shape: hal.config.ModelShape = V4, limits: hal.Limits = LIMITS, **changes) -> hal.Plan:
    return hal.plan(shape, "cpu", limits=limits, **({"dtype": "bfloat16"} | changes))


def test_compressed_layers_of_a_kind_share_cache_groups() -> None:
    found = [
        (
            group.part,
            group.layer_ids,
            group.layout.name,
            group.layout.width,
            group.layout.dtype,
            group.tokens_per_row,
            group.window,
        )
        for group in planned().groups
    ]
    assert found == [
        ("kv", (0, 1, 2, 3), "latent", 512, "bfloat16", 1, 128),
        ("entries", (1, 3), "latent", 512, "bfloat16", 4, None),
        ("entries", (2,), "latent", 512, "bfloat16", 128, None),
        ("index", (1, 3), "indexer", 128, "bfloat16", 4, None),
        ("state", (1, 3), "state", 2 * 2 * 512, "float32", 1, 8),
        ("state", (2,), "state", 2 * 512, "float32", 1, 128),
        ("index_state", (1, 3), "state", 2 * 2 * 128, "float32", 1, 8),
    ]
    assert [group.last_rows for group in planned().groups] == [None] * 4 + [8, 128, 8]
    assert [group.last_rows for group in planned(num_spec_tokens=3).groups] == [None] * 4 + [11, 131, 11]


def test_a_page_holds_whole_rows_of_every_group() -> None:
    plan = planned()
    assert plan.block_size == 256
    assert {spec.key: spec.shape(3) for spec in plan.cache_specs() if spec.layer_id == 1} == {
        1: (3, 256, 512),
        (1, "entries"): (3, 64, 512),
        (1, "index"): (3, 64, 128),
        (1, "state"): (3, 8, 2048),
        (1, "index_state"): (3, 8, 512),
    }
    assert planned(limits=replace(LIMITS, block_size=128)).block_size == 128


@pytest.mark.parametrize(("block_size", "multiple"), [(1, 4), (16, 128), (64, 128), (192, 128)])
def test_a_page_that_does_not_is_refused_with_the_figures(block_size: int, multiple: int) -> None:
    with pytest.raises(hal.NoBackend, match=f"block size {block_size} does not fit multiples of {multiple}, the tokens") as error:
        planned(limits=replace(LIMITS, block_size=block_size))
    assert "block_size" in [reason.code for reason in error.value.rejected["cpu"]]


def test_bytes_are_those_of_the_config() -> None:
    """The window's rows and the index keys as the shape counts them; entries, states and index states beside them."""
    plan = planned()
    of = {
        part: [group for group in plan.groups if group.part == part]
        for part in ("kv", "entries", "index", "state", "index_state")
    }
    assert sum(group.bytes_per_token for group in of["kv"]) == V4.kv_bytes_per_token("auto", "bfloat16") == 4 * 1024
    assert [group.layout.bytes_per_token for group in of["index"]] == [V4.layers[1].index_bytes_per_token("auto", "bfloat16")]
    assert [group.bytes_per_token for group in of["entries"]] == [2 * 1024 // 4, 1024 // 128]
    # A page of 256 tokens keeps the states of its last 8, or 128.
    assert [group.bytes_per_token for group in of["state"]] == [2 * 8192 * 8 // 256, 4096 * 128 // 256]
    assert [group.bytes_per_token for group in of["index_state"]] == [2 * 2048 * 8 // 256]
    assert plan.page_bytes == sum(spec.page_bytes for spec in plan.cache_specs()) == plan.bytes_per_token * plan.block_size
    memory = plan.workspace_bytes + 40 * plan.page_bytes
    assert plan.max_tokens(memory) == 40 * plan.block_size < plan.max_tokens_per_group(memory)


def test_growth_is_what_a_sequence_keeps() -> None:
    """Behind every window a token costs its share of entries and index keys: the shape's own growth."""
    step = 128 * 64
    growth = V4.kv_bytes(2**20 + step) - V4.kv_bytes(2**20)
    endless = [group for group in planned().groups if group.window is None]
    assert growth == sum(group.bytes_per_token for group in endless) * step


def test_the_report_names_rows_that_tokens_share() -> None:
    plan = planned()
    assert "(entries): 2 layers of latent, 1024 bytes per 4 tokens and layer" in plan.explain()
    assert "(state): 1 layers of state, 4096 bytes per token and layer, window 128" in plan.explain()
    written = json.loads(json.dumps(plan.to_dict()))
    assert [group["tokens_per_row"] for group in written["groups"]] == [1, 4, 128, 4, 1, 1, 1]
    assert json.dumps(planned().to_dict()) == json.dumps(plan.to_dict())


def test_decode_context_ranks_are_refused() -> None:
    with pytest.raises(hal.NoBackend) as error:
        planned(parallel=hal.Parallel(dcp=2))
    assert "dcp" in [reason.code for reason in error.value.rejected["cpu"]]


def test_entries_that_nobody_makes_are_refused() -> None:
    for wrong in (compressed(1, 8, topk=2, entry_source=0), compressed(1, 4, entry_source=0)):
        with pytest.raises(hal.InputError, match="layer 1 reads one entry per"):
            planned(model(compressed(0, 0) if wrong.compress_ratio == 4 else compressed(0, 4, topk=2), wrong))


def test_pooled_index_keys_share_rows() -> None:
    layer = sparse(0, topk=8)
    pooled = replace(layer, indexer=replace(layer.indexer, pool=4))
    groups = {group.part: group for group in planned(model(pooled)).groups}
    assert set(groups) == {"kv", "index", "index_state"}
    assert (groups["index"].tokens_per_row, groups["index_state"].window) == (4, 4)
    with pytest.raises(hal.NoBackend, match="whole pools"):
        planned(model(replace(layer, indexer=replace(layer.indexer, topk=9, pool=4))))


def test_layers_that_read_entries_keep_none() -> None:
    specs = planned(model(*layers()), hal.Limits(96, 6, 64, block_size=8)).cache_specs()
    assert [spec.part for spec in specs if spec.layer_id == 3] == ["kv"]


def test_buffers_count_in_rows() -> None:
    buffers = {buffer.name: buffer for buffer in planned().buffers}
    assert buffers["top-k"].shape == (512, 512)
    assert buffers["compressed rows"].shape == (512, 128 + 4096 // 128)
    # A query of the longest request scores an entry per four tokens.
    assert buffers["index scores"].shape == (512 * 1024,)
    assert planned(limits=replace(LIMITS, max_logits_bytes=4096)).limits.max_logits_bytes == 4096
    with pytest.raises(hal.InputError, match="4095"):
        planned(limits=replace(LIMITS, max_logits_bytes=4095))
