"""A composite model is served from its text config alone."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from hal.config import HalError, read_shape
from hal.models import GenerationError, attach

from .helpers import composites, oracle, tiny


@pytest.fixture(scope="module", params=composites.TWINS)
def twins(request: pytest.FixtureRequest) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A composite model and the flat model of its text part, with the same weights."""
    composite = tiny.build(composites.COMPOSITES[request.param]())
    flat = tiny.build(composites.TWINS[request.param]())
    flat.model.load_state_dict(composite.get_decoder().state_dict())
    flat.lm_head.load_state_dict(composite.lm_head.state_dict())
    return composite, flat


@pytest.mark.parametrize("family", composites.COMPOSITES)
def test_text_fields_are_not_needed_at_the_root(family: str) -> None:
    config = composites.COMPOSITES[family]()
    whole = read_shape(config)
    text = config.get_text_config(decoder=True)
    for name in text.to_dict().keys() - {"dtype", "tie_word_embeddings"}:
        config.__dict__.pop(name, None)
    assert not hasattr(config, "num_hidden_layers")
    assert read_shape(config) == whole
    assert whole.index_topk == getattr(text, "index_topk", None)


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


@pytest.mark.parametrize("family", composites.COMPOSITES)
def test_the_vision_part_keeps_its_own_attention(family: str) -> None:
    composite = tiny.build(composites.COMPOSITES[family]())
    attach(composite)
    assert composite.config.vision_config._attn_implementation == "eager"
    assert composite.get_decoder().config._attn_implementation == "hal"


@pytest.mark.parametrize("family", composites.COMPOSITES)
def test_a_prompt_with_an_image_is_refused(family: str) -> None:
    model = oracle.run_on_hal(tiny.build(composites.COMPOSITES[family]()))
    with pytest.raises(GenerationError, match=r"prompt 1 holds token 127, which stands for an image.*\(image_token_i") as caught:
        model.generate([[3, 4], [3, 127, 127, 4]], 2)
    assert isinstance(caught.value, HalError)
    assert model.attention.pages.num_free == model.attention.pages.num_pages


def test_a_text_model_has_no_media_tokens() -> None:
    model = oracle.run_on_hal(tiny.build(tiny.llama()))
    assert not model.media_tokens
    assert model.generate([[127]], 1)
