"""transformers' generate_batch() on hal attention: the tokens of its own attention, and typed errors elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel

from hal.common.contract.errors import InputError
from hal.models import UnsupportedModelError, attach, enable_generate_batch
from hal.models.continuous import ContinuousBinding
from hal.models.interface import BINDING

from .helpers import composites, oracle, tiny

LENGTHS = [5, 31, 2, 17]
NEW_TOKENS = 12


def run(module: PreTrainedModel, max_batch_tokens: int = 64) -> list[list[int]]:
    """Greedy tokens of four prompts; batches of that many tokens, so that a prompt may come in pieces."""
    results = module.generate_batch(
        oracle.random_prompts(LENGTHS, seed=3),
        generation_config=GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=8, num_blocks=64, max_batch_tokens=max_batch_tokens, allow_block_sharing=False
        ),
        progress_bar=False,
    )
    ordered = sorted(results.values(), key=lambda result: int(result.request_id.rpartition("_")[2]))
    assert [result.error for result in ordered] == [None] * len(LENGTHS)
    return [list(result.generated_tokens) for result in ordered]


@pytest.mark.parametrize("max_batch_tokens", [64, 16], ids=["whole_prompts", "prompts_in_pieces"])
@pytest.mark.parametrize("config", [tiny.llama, tiny.mistral, tiny.gpt_oss], ids=["llama", "mistral-window", "gpt-oss-sinks"])
def test_the_tokens_are_those_of_transformers_own_attention(
    config: Callable[[], PreTrainedConfig], max_batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(tiny.build(config()), max_batch_tokens)
    ours = enable_generate_batch(tiny.build(config()))
    calls: list[int] = []
    attend = ContinuousBinding.attend

    def count(self: ContinuousBinding, *arguments: object) -> torch.Tensor:
        calls.append(self.layer.layer_id)
        return attend(self, *arguments)

    monkeypatch.setattr(ContinuousBinding, "attend", count)
    assert run(ours, max_batch_tokens) == expected
    assert len(calls) >= NEW_TOKENS * ours.config.num_hidden_layers


@pytest.mark.parametrize("config", [tiny.llama, tiny.gemma2, tiny.qwen3], ids=["llama", "gemma2-softcap", "qwen3"])
def test_a_batch_of_transformers_gives_each_prompt_the_tokens_it_gets_alone(config: Callable[[], PreTrainedConfig]) -> None:
    together = run(enable_generate_batch(tiny.build(config())), max_batch_tokens=16)
    alone = attach(tiny.build(config()))
    for prompt, tokens in zip(oracle.random_prompts(LENGTHS, seed=3), together, strict=True):
        assert list(alone.generate([prompt], NEW_TOKENS, eos_token_ids=())[0].tokens) == tokens


@pytest.mark.parametrize(
    ("config", "words"),
    [(tiny.deepseek_v3, "of kind mla"), (composites.llava_v32, "of kind mla"), (tiny.deepseek_v4, "of kind compressed")],
    ids=["mla", "composite-mla", "compressed"],
)
def test_a_model_that_the_paged_cache_cannot_hold_is_refused(config: Callable[[], PreTrainedConfig], words: str) -> None:
    module = tiny.build(config())
    before = module.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match=words):
        enable_generate_batch(module)
    assert module.config._attn_implementation == before
    assert not any(BINDING in child.__dict__ for child in module.modules())


@pytest.mark.parametrize("take_over", [enable_generate_batch, attach], ids=["enable_generate_batch", "attach"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: attach(tiny.build(tiny.llama())), "Model is no transformers PreTrainedModel"),
        (lambda: tiny.build(tiny.llama()).model, "no tokens; give the model with its head"),
    ],
    ids=["hals_own_model", "without_a_head"],
)
def test_what_makes_no_tokens_by_transformers_is_refused(
    take_over: Callable[..., object], make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        take_over(make())


def test_a_backend_that_is_not_registered_is_refused() -> None:
    with pytest.raises(InputError, match="unknown backend 'cpu:fast'"):
        enable_generate_batch(tiny.build(tiny.llama()), backend="cpu:fast")


def test_other_ways_of_generating_say_what_to_use() -> None:
    module = enable_generate_batch(tiny.build(tiny.llama()))
    with pytest.raises(UnsupportedModelError, match=r"prepared for generate_batch.*attach"):
        module(input_ids=torch.tensor([[1, 2, 3]]))


def test_a_module_is_taken_over_once() -> None:
    module = enable_generate_batch(tiny.build(tiny.llama()))
    with pytest.raises(UnsupportedModelError, match="already runs on hal"):
        enable_generate_batch(module)
    with pytest.raises(UnsupportedModelError, match="already runs on hal"):
        attach(module)


def test_generate_batch_of_an_attached_model_is_refused() -> None:
    model = attach(tiny.build(tiny.llama()))
    with pytest.raises(ValueError, match="Implementation hal is not supported for continuous batching"):
        run(model.module)
