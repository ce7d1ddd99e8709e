"""Compressed attention in a running model: transformers' own batched generate, short prompts, and modules that differ."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import PreTrainedModel

from hal.models import UnsupportedModelError, attach

from .helpers import oracle, tiny


@pytest.fixture(scope="module")
def module() -> PreTrainedModel:
    return tiny.build(tiny.deepseek_v4())


@pytest.mark.parametrize("length", [3, 16, 45], ids="{}tokens".format)
def test_prompts_of_one_length_get_the_tokens_of_transformers_generate(module: PreTrainedModel, length: int) -> None:
    """With its own cache; before the first entry, at the edge of window and group, and with more entries than top-k."""
    prompts = oracle.random_prompts([length] * 3, seed=length)
    with torch.no_grad():
        ids = module.generate(torch.tensor(prompts), max_new_tokens=20, do_sample=False)
    model = oracle.run_on_hal(module, max_num_batched_tokens=37)
    found = [list(generation.tokens) for generation in model.generate(prompts, 20)]
    assert found == ids[:, length:].tolist()


def test_groups_of_two_tokens_overlap_too() -> None:
    config = tiny.deepseek_v4()
    config.compress_rates = {"compressed_sparse_attention": 2, "heavily_compressed_attention": 8}
    module, prompts = tiny.build(config), oracle.random_prompts([9] * 2, seed=9)
    with torch.no_grad():
        ids = module.generate(torch.tensor(prompts), max_new_tokens=8, do_sample=False)
    assert [list(generation.tokens) for generation in oracle.run_on_hal(module).generate(prompts, 8)] == ids[:, 9:].tolist()


def test_a_model_without_its_entries_answers_otherwise(module: PreTrainedModel) -> None:
    """The comparison above means something only if a model without its entries answers otherwise."""
    (prompt,) = oracle.random_prompts([45], seed=45)
    model = oracle.run_on_hal(module)
    (whole,) = oracle.paged_logits(model, [prompt], [[45]])
    for cache in model.attention.caches.values():
        assert cache.storage.any()
    reach = [layer for layer in model.plan.shape.layers if layer.compress_ratio]
    assert [layer.compress_span for layer in reach] == [8, 16, 8]
    other = [token if index > 8 else (token + 1) % 120 for index, token in enumerate(prompt)]
    (changed,) = oracle.paged_logits(oracle.run_on_hal(module), [other], [[45]])
    assert not torch.allclose(whole[-1], changed[-1], atol=1e-3)


def test_a_prompt_cut_anywhere_gives_the_logits_of_one_piece(module: PreTrainedModel) -> None:
    """A prompt in pieces that cut groups, then short extends, gives the logits of one piece."""
    (prompt,) = oracle.random_prompts([50], seed=6)
    expected = oracle.eager_logits(module, prompt)
    for pieces in ([[50]], [[1]] * 50, [[5], [3], [17], [2], [1], [22]]):
        (found,) = oracle.paged_logits(oracle.run_on_hal(module), [prompt], pieces)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_a_compressor_that_computes_otherwise_is_refused(module: PreTrainedModel) -> None:
    other = copy.deepcopy(module)
    compressor = other.model.layers[2].self_attn.compressor
    norm = compressor.kv_norm.forward
    compressor.kv_norm.forward = lambda hidden: norm(hidden) + 0.01
    with pytest.raises(
        UnsupportedModelError, match=r"layer 2 \(\w+HCACompressor\) compresses tokens to \[2, 32\] in another way"
    ):
        attach(other)


def test_an_indexer_that_compresses_otherwise_is_refused(module: PreTrainedModel) -> None:
    other = copy.deepcopy(module)
    indexer = other.model.layers[1].self_attn.compressor.indexer
    norm = indexer.kv_norm.forward
    indexer.kv_norm.forward = lambda hidden: 2 * norm(hidden)
    with pytest.raises(UnsupportedModelError, match=r"layer 1 \(\w+Indexer\) compresses tokens to \[2, 16\] in another way"):
        attach(other)


def test_an_indexer_of_another_topk_is_refused(module: PreTrainedModel) -> None:
    other = copy.deepcopy(module)
    other.model.layers[1].self_attn.compressor.indexer.index_topk = 3
    with pytest.raises(UnsupportedModelError, match="index_topk=3, its config says 4"):
        attach(other)


def test_a_layer_without_its_compressor_is_refused(module: PreTrainedModel) -> None:
    other = copy.deepcopy(module)
    other.model.layers[2].self_attn.compressor = None
    with pytest.raises(UnsupportedModelError, match=r"layer 2 .* did not run a compressor"):
        attach(other)


def test_a_compressor_without_known_parts_is_refused(module: PreTrainedModel) -> None:
    other = copy.deepcopy(module)
    del other.model.layers[2].self_attn.compressor.position_bias
    with pytest.raises(UnsupportedModelError, match=r"layer 2 .* has no position_bias"):
        attach(other)
