"""What a rank keeps of a model, decided from its forward alone: nothing is missing, nothing is double, sizes are named."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedConfig

import hal
from hal.config import read_shape
from hal.models.build import build_module
from hal.models.sharding import plan_sharding
from hal.models.slices import Part, block

from .helpers import tiny
from .helpers.rank_cases import COMMON, FAMILIES, OLD, falcon, llama, shard

# Name of the fused projection, and which of its outputs heads 2 and 3 of 4 make, by query, key and value.
LAYOUTS: dict[str, tuple[Callable[[], PreTrainedConfig], str, list[range]]] = {
    "interleaved per head": (tiny.gpt_neox, "gpt_neox.layers.0.attention.query_key_value", [range(96, 192)]),
    "in blocks": (
        lambda: transformers.GPT2Config(**OLD),
        "transformer.h.0.attn.c_attn",
        [range(32, 64), range(96, 128), range(160, 192)],
    ),
    "in blocks of different widths": (
        tiny.phi3,
        "model.layers.0.self_attn.qkv_proj",
        [range(32, 64), range(80, 96), range(112, 128)],
    ),
    "one key for all queries": (
        lambda: falcon(multi_query=True),
        "transformer.h.0.self_attention.query_key_value",
        [range(32, 64), range(64, 96)],
    ),
    "grouped": (
        lambda: falcon(new_decoder_architecture=True, num_kv_heads=2),
        "transformer.h.0.self_attention.query_key_value",
        [range(64, 128)],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fused_projection_is_cut_by_heads_whatever_its_layout(layout: str) -> None:
    family, name, runs = LAYOUTS[layout]
    _, sharding = shard(family(), tp=2, rank=1)
    assert sharding.slices.parts[f"{name}.weight"].indices() == [row for run in runs for row in run]


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_ranks_parts_make_up_every_parameter(family: str, tp: int) -> None:
    config = FAMILIES[family]()
    ranks = [shard(config, tp, rank) for rank in range(tp)]
    for name, parameter in ranks[0][0].named_parameters():
        parts = [sharding.slices.parts.get(name) for _, sharding in ranks]
        if all(part is None for part in parts):
            continue
        kept = [part.indices() for part in parts if part is not None]
        assert len(kept) == tp
        assert sorted(set().union(*kept)) == list(range(parameter.shape[parts[0].dim]))
        # Only the keys and values that several ranks' queries read are on more than one.
        assert sum(map(len, kept)) == parameter.shape[parts[0].dim] or re.search(r"k_proj|v_proj|qkv|query_key_value|attn", name)
    zeroed = [sharding.slices.zeroed for _, sharding in ranks]
    assert not zeroed[0]
    assert all(each == zeroed[1] for each in zeroed[1:])


STYLES = {"colwise": 0, "rowwise": 1, "packed_colwise": 0}


@pytest.mark.parametrize(
    "family", ["llama-2-kv-heads", "gpt-neox", "qwen3-moe", "deepseek-v3", "deepseek-v32", "glm-dsa", "gemma2"]
)
def test_what_transformers_plans_to_divide_is_divided_the_same_way(family: str) -> None:
    module, sharding = shard(FAMILIES[family](), tp=2, rank=1)
    planned = {
        (name, style)
        for name, parameter in module.named_parameters()
        for pattern, style in module.tp_plan.items()
        if style in STYLES and re.fullmatch(pattern.replace(".", r"\.").replace("*", r"\d+") + r"(\.weight)?", name)
    }
    assert planned
    for name, style in planned:
        part = sharding.slices.parts[name]
        dim = STYLES[style] + module.get_parameter(name).ndim - 2
        assert (part.dim, part.length) == (dim, part.size // 2), name
        assert len(part.runs) == (2 if style == "packed_colwise" else 1)


def test_a_layer_that_several_heads_share_stays_whole() -> None:
    _, sharding = shard(FAMILIES["olmo2-norm-over-heads"](), tp=2, rank=0)
    assert "model.layers.0.self_attn.q_proj.weight" not in sharding.slices.parts
    assert "model.layers.0.self_attn.v_proj.weight" in sharding.slices.parts
    _, sharding = shard(FAMILIES["bitnet-norm-behind-attention"](), tp=2, rank=0)
    assert "mixes heads after attention" in sharding.notes[0]
    assert sharding.attention["model.layers.0.self_attn"].gathers


def test_a_model_that_does_not_run_without_weights_keeps_its_projections_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise RuntimeError("no weights")

    monkeypatch.setattr("hal.models.sharding.run_hollow", fail)
    _, sharding = shard(llama(4, 2), tp=2, rank=0)
    assert set(sharding.slices.parts) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert all(share.gathers for share in sharding.attention.values())
    assert "no weights" in sharding.notes[0]


@pytest.mark.parametrize(
    ("config", "tp", "words"),
    [
        (lambda: llama(8, 8), 3, r"8 query heads and 8 KV heads, which 3 ranks do not divide; tp of 2, 4, 8 would do"),
        (
            lambda: transformers.Qwen3Config(**(COMMON | {"num_attention_heads": 6}), num_key_value_heads=3, head_dim=16),
            2,
            "tp of 3",
        ),
        (lambda: transformers.LlamaConfig(**(COMMON | {"intermediate_size": 102})), 4, r"102 wide inside.*tp of 2 would do"),
        (lambda: transformers.LlamaConfig(**(COMMON | {"intermediate_size": 101})), 2, "no number of ranks above one"),
    ],
    ids=["heads", "kv heads", "inner width", "no number"],
)
def test_sizes_that_do_not_divide_are_refused_with_the_numbers_that_would(
    config: Callable[[], PreTrainedConfig], tp: int, words: str
) -> None:
    with pytest.raises(hal.InputError, match=words):
        shard(config(), tp, 0)


def test_a_module_is_left_as_it_is() -> None:
    module = build_module(falcon(multi_query=True))
    before = {name: dict(child.__dict__) for name, child in module.named_modules()}
    plan_sharding(module, read_shape(module.config), hal.Parallel(tp=2))
    for name, child in module.named_modules():
        assert child.__dict__.keys() == before[name].keys()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_parts_of_all_ranks_put_together_are_the_tensor(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    owners = data.draw(st.lists(st.integers(0, 2), min_size=shape[dim], max_size=shape[dim]))
    whole = torch.arange(torch.tensor(shape).prod().item()).view(shape)
    rebuilt = torch.full_like(whole, -1)
    for rank in set(owners):
        part = Part.of(dim, shape[dim], [index for index, owner in enumerate(owners) if owner == rank])
        taken = part.take(whole, shape)
        assert tuple(taken.shape) == part.shape(shape)
        assert part.whole_shape(taken.shape) == tuple(shape)
        rebuilt.index_copy_(dim, torch.tensor(part.indices()), taken)
    assert torch.equal(rebuilt, whole)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 8))
def test_blocks_cover_every_place_once(size: int, ranks: int) -> None:
    assert [place for rank in range(ranks) for place in block(size, rank, ranks)] == list(range(size))
