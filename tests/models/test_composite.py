"""A composite model is served from its text config alone."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from hal.config import read_shape
from hal.models import attach

from . import oracle, tiny

SPARSE_FIELDS = ("index_topk", "index_head_dim", "index_n_heads", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")


@pytest.fixture(scope="module")
def twins() -> tuple[PreTrainedModel, PreTrainedModel]:
    """A composite model and the flat model of its text part, with the same weights."""
    composite, flat = tiny.build(tiny.llava()), tiny.build(tiny.deepseek_v32())
    flat.model.load_state_dict(composite.get_decoder().state_dict())
    flat.lm_head.load_state_dict(composite.lm_head.state_dict())
    return composite, flat


def test_sparse_fields_are_not_at_the_root(twins: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    composite, _ = twins
    for name in SPARSE_FIELDS:
        composite.config.__dict__.pop(name, None)
        assert not hasattr(composite.config, name)
    assert read_shape(composite.config).index_topk == 8


def test_composite_equals_its_flat_twin_bit_for_bit(twins: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    composite, flat = (oracle.run_on_hal(module) for module in twins)
    assert composite.plan.shape.layers == flat.plan.shape.layers
    sequences = oracle.random_prompts([37, 12, 20], seed=5)
    pieces = [[30, 5, 19], [1, 1, 1], [6, 6, 0]]
    for one, other in zip(
        oracle.paged_logits(composite, sequences, pieces), oracle.paged_logits(flat, sequences, pieces), strict=True
    ):
        assert torch.equal(one, other)
    prompts = oracle.random_prompts([20, 3], seed=6)
    assert composite.generate(prompts, 10) == flat.generate(prompts, 10)


def test_the_vision_tower_keeps_its_own_attention() -> None:
    composite = tiny.build(tiny.llava())
    attach(composite)
    assert composite.model.vision_tower.config._attn_implementation == "eager"
    assert composite.get_decoder().config._attn_implementation == "hal"
