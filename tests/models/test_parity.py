"""Every family against transformers' eager run: logits and greedy tokens, prefill and decode, ragged, two page sizes."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from .helpers import composites, oracle, tiny

LENGTHS = (5, 33, 1, 18)
TOLERANCE = 2e-5
EVERY = tiny.FAMILIES | composites.COMPOSITES


@pytest.fixture(scope="module", params=EVERY)
def module(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny.build(EVERY[request.param]())


@pytest.fixture(scope="module", params=[16, 64], ids="page{}".format)
def block_size(request: pytest.FixtureRequest) -> int:
    return request.param


def test_logits_of_a_ragged_prefill_and_decode_match_eager(module: PreTrainedModel, block_size: int) -> None:
    model = oracle.run_on_hal(module, block_size)
    sequences = oracle.random_prompts([length + 4 for length in LENGTHS])
    pieces = [list(LENGTHS), [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 1], [2, 1, 2, 1]]
    found = oracle.paged_logits(model, sequences, pieces)
    for tokens, logits in zip(sequences, found, strict=True):
        torch.testing.assert_close(logits, oracle.eager_logits(module, tokens), atol=TOLERANCE, rtol=TOLERANCE)


def test_logits_of_a_chunked_prefill_mixed_with_decodes_match_eager(module: PreTrainedModel, block_size: int) -> None:
    model = oracle.run_on_hal(module, block_size)
    sequences = oracle.random_prompts([40, 9, 23], seed=2)
    pieces = [[17, 5, 0], [3, 1, 20], [1, 1, 1], [18, 1, 1], [1, 1, 1]]
    found = oracle.paged_logits(model, sequences, pieces)
    for tokens, logits in zip(sequences, found, strict=True):
        torch.testing.assert_close(logits, oracle.eager_logits(module, tokens), atol=TOLERANCE, rtol=TOLERANCE)


def test_greedy_tokens_match_eager(module: PreTrainedModel, block_size: int) -> None:
    model = oracle.run_on_hal(module, block_size, max_num_batched_tokens=24)
    prompts = oracle.random_prompts(LENGTHS, seed=3)
    for prompt, generation in zip(prompts, model.generate(prompts, 12), strict=True):
        logits = oracle.eager_logits(module, [*prompt, *generation.tokens])
        assert list(generation.tokens) == logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
    assert model.attention.pages.num_free == model.attention.pages.num_pages


def test_what_a_prompt_gets_does_not_depend_on_its_neighbours(module: PreTrainedModel) -> None:
    model = oracle.run_on_hal(module)
    prompts = oracle.random_prompts(LENGTHS, seed=4)
    together = [generation.tokens for generation in model.generate(prompts, 8)]
    alone = [model.generate([prompt], 8)[0].tokens for prompt in prompts]
    assert together == alone
