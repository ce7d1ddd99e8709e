"""Models whose attention is not behind transformers' interface: served where their structure is known, else refused by name."""

from __future__ import annotations

from types import MethodType

import pytest
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from hal.models import UnsupportedModelError, attach

from .helpers import oracle, tiny
from .helpers.rank_cases import COMMON, FAMILIES, OLD, falcon

REROUTED = [name for name in FAMILIES if name.startswith(("falcon", "gptj", "codegen", "gpt-neo"))] + ["biogpt", "stablelm"]


def config(name: str) -> PreTrainedConfig:
    if name == "biogpt":
        return transformers.BioGptConfig(**(COMMON | {"pad_token_id": 1}))
    if name == "stablelm":
        return transformers.StableLmConfig(**COMMON, num_key_value_heads=2)
    return FAMILIES[name]()


@pytest.mark.parametrize("name", REROUTED)
def test_logits_of_pieces_and_greedy_tokens_match_eager(name: str) -> None:
    module = tiny.build(config(name))
    model = oracle.run_on_hal(module, max_model_len=64)
    sequences = oracle.random_prompts([21, 9])
    found = oracle.paged_logits(model, sequences, [[13, 1], [1, 7], [7, 1]])
    for tokens, logits in zip(sequences, found, strict=True):
        torch.testing.assert_close(logits, oracle.eager_logits(module, tokens), atol=1e-5, rtol=1e-5)
    for prompt, generation in zip(sequences, model.generate(sequences, 6), strict=True):
        logits = oracle.eager_logits(module, [*prompt, *generation.tokens])
        assert list(generation.tokens) == logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()


def attend_with_another_scale(self: torch.nn.Module, query, key, value, attention_mask=None):
    weights = torch.softmax(query @ key.mT * 0.1 + attention_mask, dim=-1)
    return weights @ value, weights


def attend_without_mask(self: torch.nn.Module, query, key, value, attention_mask=None):
    weights = torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)
    return weights @ value, weights


@pytest.mark.parametrize("method", [attend_with_another_scale, attend_without_mask])
def test_a_method_that_computes_another_softmax_is_refused_and_left_as_it_was(method: object) -> None:
    module = tiny.build(transformers.GPTJConfig(**OLD, rotary_dim=8))
    for block in module.transformer.h:
        block.attn._attn = MethodType(method, block.attn)
    before = oracle.eager_logits(module, range(2, 9))
    with pytest.raises(UnsupportedModelError, match="_attn of GPTJAttention is not the softmax"):
        attach(module)
    assert torch.equal(oracle.eager_logits(module, range(2, 9)), before)


def test_keys_that_only_look_repeated_are_refused_and_the_module_left_as_it_was() -> None:
    module = tiny.build(falcon(new_decoder_architecture=True, num_kv_heads=2))
    before = oracle.eager_logits(module, range(2, 9))
    for block in module.transformer.h:
        attention = block.self_attention
        split = attention._split_heads
        attention._split_heads = lambda fused, split=split: tuple(part * torch.arange(1.0, 5.0)[:, None] for part in split(fused))
    with pytest.raises(UnsupportedModelError, match="4 different keys or values"):
        attach(module)
    for block in module.transformer.h:
        del block.self_attention._split_heads
    assert module.config._attn_implementation == "eager"
    assert torch.equal(oracle.eager_logits(module, range(2, 9)), before)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        (lambda: falcon(alibi=True), "position bias"),
        (lambda: transformers.BloomConfig(vocab_size=128, hidden_size=64, n_layer=2, n_head=4), "position bias"),
        (lambda: transformers.OpenAIGPTConfig(**OLD), "OpenAIGPTLMHeadModel.*neither behind"),
    ],
    ids=["falcon with alibi", "bloom", "no layer numbers"],
)
def test_what_is_not_known_is_refused_by_class_and_reason(family: object, words: str) -> None:
    module: PreTrainedModel = tiny.build(family())
    with pytest.raises(UnsupportedModelError, match=words):
        attach(module)
