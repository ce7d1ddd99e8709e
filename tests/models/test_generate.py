"""Prompts, pages, settings and streaming of Model.generate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hal.common.contract.batch import Batch
from hal.common.contract.errors import CapacityError
from hal.common.contract.limits import Limits
from hal.config import HalError
from hal.models import GenerationError, Model, attach
from hal.models.sampling import Sampling, choose_tokens

from .helpers import oracle, tiny


@pytest.fixture(scope="module")
def module() -> PreTrainedModel:
    return tiny.build(tiny.llama())


@pytest.fixture
def model(module: PreTrainedModel) -> Model:
    return oracle.run_on_hal(module)


def small_pool(num_blocks: int) -> Model:
    limits = Limits(max_model_len=128, max_num_seqs=4, max_num_batched_tokens=32, block_size=16)
    return attach(tiny.build(tiny.llama()), limits=limits, num_blocks=num_blocks)


def all_free(model: Model) -> bool:
    return model.attention.pages.num_free == model.attention.pages.num_pages


@pytest.mark.parametrize(
    ("prompts", "settings", "words"),
    [
        ([[]], {}, "prompt 0 is empty"),
        ([[1], []], {}, "prompt 1 is empty"),
        ([""], {}, "no tokenizer"),
        ("text", {}, "list of prompts"),
        ([[1, 128]], {}, "token 128"),
        ([[1, -1]], {}, "token -1"),
        ([[1.7]], {}, r"prompt 0 holds 1\.7"),
        ([[True]], {}, "prompt 0 holds True"),
        ([["a"]], {}, "prompt 0 holds 'a'"),
        ([[1], None], {}, "prompt 1 is None"),
        ([[1], b"2"], {}, "prompt 1 is b'2'"),
        ([1, 2], {}, "prompt 0 is 1"),
        (None, {}, "prompts is None"),
        ([[1]], {"eos_token_ids": ["x"]}, "eos_token_ids holds 'x'"),
        ([[1]], {"eos_token_ids": [1.5]}, r"eos_token_ids holds 1\.5"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens is 0"),
        ([[1]], {"max_new_tokens": True}, "max_new_tokens is True"),
        ([[1]], {"temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ([[1]], {"top_p": None}, "top_p is None; expected a number"),
        ([[1]], {"seed": 1.5}, r"seed is 1\.5; expected a whole number"),
        ([[1]], {"temperature": -1.0}, "temperature is -1.0"),
        ([[1]], {"temperature": float("nan")}, "temperature is nan"),
        ([[1]], {"top_p": 0.0}, "top_p is 0.0"),
        ([[1] * 120], {"max_new_tokens": 20}, "max_model_len is 128"),
    ],
)
def test_bad_requests_are_refused_with_their_values(model: Model, prompts, settings, words: str) -> None:
    with pytest.raises(GenerationError, match=words) as caught:
        model.generate(prompts, **settings)
    assert isinstance(caught.value, HalError | ValueError)
    assert all_free(model)


def test_a_pool_too_small_is_refused_with_the_number_that_would_do() -> None:
    model = small_pool(num_blocks=3)
    with pytest.raises(CapacityError, match=r"needs 4 pages of 16 tokens, the pool has 3; open it with 4 pages"):
        model.generate([[1] * 10, [1] * 45], 10)
    assert all_free(model)
    assert small_pool(num_blocks=4).generate([[1] * 45], 10)


def test_prompts_that_do_not_fit_together_wait_for_each_other(module: PreTrainedModel) -> None:
    prompts = oracle.random_prompts([40, 30, 20, 10, 35], seed=7)
    expected = [oracle.run_on_hal(module).generate([prompt], 6)[0].tokens for prompt in prompts]
    model = small_pool(num_blocks=4)
    assert [generation.tokens for generation in model.generate(prompts, 6)] == expected
    assert all_free(model)


def test_more_prompts_than_sequences_keep_their_order(module: PreTrainedModel) -> None:
    model = oracle.run_on_hal(module, max_num_seqs=2, max_num_batched_tokens=7)
    prompts = oracle.random_prompts([9, 2, 30, 1, 5], seed=8)
    expected = [oracle.run_on_hal(module).generate([prompt], 5)[0].tokens for prompt in prompts]
    assert [generation.tokens for generation in model.generate(prompts, 5)] == expected


def test_an_end_token_ends_one_prompt_and_not_the_others(model: Model) -> None:
    prompts = oracle.random_prompts([8, 12], seed=9)
    plain = model.generate(prompts, 10)
    end = plain[0].tokens[3]
    first, second = model.generate(prompts, 10, eos_token_ids=[end])
    assert first.tokens == plain[0].tokens[: plain[0].tokens.index(end) + 1]
    assert first.finish_reason == "eos"
    assert second.tokens == plain[1].tokens or second.finish_reason == "eos"


def test_end_tokens_come_from_the_generation_config(model: Model) -> None:
    model.module.generation_config.eos_token_id = [5, 7]
    assert model.eos_token_ids == {5, 7}
    model.module.generation_config.eos_token_id = 3
    assert model.eos_token_ids == {3}


def test_tokens_are_streamed_in_order_as_they_come(model: Model) -> None:
    streamed: dict[int, list[int]] = {0: [], 1: []}
    generations = model.generate([[1, 2, 3], [4]], 6, on_token=lambda prompt, token: streamed[prompt].append(token))
    assert [tuple(streamed[0]), tuple(streamed[1])] == [generation.tokens for generation in generations]


def test_pages_come_back_when_a_callback_fails(model: Model) -> None:
    def fail(prompt: int, token: int) -> None:
        raise RuntimeError("reader gone")

    with pytest.raises(RuntimeError, match="reader gone"):
        model.generate([[1, 2, 3], [4] * 40], 6, on_token=fail)
    assert all_free(model)


def test_a_seed_makes_sampling_repeatable_whatever_the_batch(model: Model) -> None:
    prompts = oracle.random_prompts([8, 12, 5], seed=10)
    settings = {"temperature": 1.5, "top_p": 0.9, "seed": 4}
    first = model.generate(prompts, 8, **settings)
    assert first == model.generate(prompts, 8, **settings)
    assert first[0] == model.generate(prompts[:1], 8, **settings)[0]
    assert first != model.generate(prompts, 8, **(settings | {"seed": 5}))


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 0}, {"temperature": 0.7, "top_p": 0.5}], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_order_nothing_are_refused(settings: dict[str, float], value: float) -> None:
    model = oracle.run_on_hal(tiny.build(tiny.llama()))
    with torch.no_grad():
        model.module.lm_head.weight[77] = value
    with pytest.raises(GenerationError, match=r"logits for one of 2 next tokens hold 1 (NaN|inf)"):
        model.generate([[1, 2, 3], [4]], 4, **settings)
    assert all_free(model)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_one_bad_row_among_good_ones_is_seen(sampling: Sampling, dtype: torch.dtype) -> None:
    logits = torch.randn(3, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    generators = [sampling.generator(row) for row in range(3)]
    assert len(choose_tokens(logits.index_fill(1, torch.tensor([5]), -torch.inf), sampling, generators)) == 3
    for bad in (logits.index_fill(0, torch.tensor([1]), -torch.inf), logits.index_fill(1, torch.tensor([5]), torch.nan)):
        with pytest.raises(GenerationError, match="hold"):
            choose_tokens(bad, sampling, generators)


def test_a_narrow_nucleus_is_greedy(model: Model) -> None:
    prompts = oracle.random_prompts([8, 12], seed=11)
    assert model.generate(prompts, 8, temperature=1.0, top_p=1e-6, seed=0) == model.generate(prompts, 8)


def test_sampling_draws_from_the_tempered_distribution(module: PreTrainedModel) -> None:

    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    sampling = Sampling(temperature=2.0, top_p=0.85, seed=0)
    source = sampling.generator(0)
    drawn = [choose_tokens(logits, sampling, [source])[0] for _ in range(4000)]
    share = torch.bincount(torch.tensor(drawn), minlength=4) / len(drawn)
    kept = torch.softmax(logits[0] / 2.0, dim=-1)
    kept[3] = 0.0
    torch.testing.assert_close(share, kept / kept.sum(), atol=0.03, rtol=0.0)


@pytest.mark.parametrize("temperature", [1e-9, 1e-40, 1e-300])
def test_the_smallest_temperatures_are_greedy(model: Model, temperature: float) -> None:
    prompts = oracle.random_prompts([5, 9], seed=3)
    assert model.generate(prompts, 4, temperature=temperature, seed=1) == model.generate(prompts, 4)


def one_step(model: Model, lengths: list[int], tokens: torch.Tensor, rows: list[int] | None = None) -> torch.Tensor:
    pages = model.attention.pages.allocate(len(lengths))
    try:
        table = np.array(pages, np.int32).reshape(len(lengths), 1)
        return model.forward(tokens, Batch(lengths, lengths, table), rows)
    finally:
        model.attention.pages.free(pages)


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1], [2], [0, 2], [], [2, 1, 0, 2]])
def test_rows_come_in_the_order_they_are_asked_for(model: Model, rows: list[int]) -> None:
    tokens = torch.tensor([3, 5, 7])
    everything = one_step(model, [2, 1], tokens)
    torch.testing.assert_close(one_step(model, [2, 1], tokens, rows), everything[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "rows", "words"),
    [
        (torch.tensor([3]), None, r"input_ids is torch\.int64 \[1\]; expected int64 \[3\]"),
        (torch.tensor([3, 4, 5, 6]), None, r"input_ids is torch\.int64 \[4\]"),
        (torch.tensor([[3, 4, 5]]), None, r"input_ids is torch\.int64 \[1, 3\]"),
        (torch.tensor([3.0, 4.0, 5.0]), None, r"input_ids is torch\.float32"),
        ([3, 4, 5], None, r"input_ids is \[3, 4, 5\]"),
        (torch.tensor([3, 4, 128]), None, "tokens 3 to 128; the model knows 0 to 127"),
        (torch.tensor([3, 4, -1]), None, "tokens -1 to 4"),
        (torch.tensor([3, 4, 5]), [3], "rows asks for 3; expected whole numbers from 0 to 2"),
        (torch.tensor([3, 4, 5]), [-1], "rows asks for -1"),
        (torch.tensor([3, 4, 5]), [0.5], r"rows asks for 0\.5"),
    ],
)
def test_a_step_of_other_tokens_than_its_batch_is_refused(model: Model, tokens, rows, words: str) -> None:
    before = [cache.storage.clone() for cache in model.attention.caches.values()]
    with pytest.raises(GenerationError, match=words):
        one_step(model, [2, 1], tokens, rows)
    after = [cache.storage for cache in model.attention.caches.values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_step_without_tokens_gives_no_rows(model: Model) -> None:
    empty = model.forward(torch.zeros(0, dtype=torch.long), Batch([], [], np.zeros((0, 1), np.int32)))
    assert empty.shape == (0, 128)


def test_only_the_asked_rows_of_logits_are_computed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    head = model.module.lm_head.forward
    monkeypatch.setattr(model.module.lm_head, "forward", lambda hidden: (rows.append(hidden.shape[1]), head(hidden))[1])
    model.generate(oracle.random_prompts([30, 10], seed=12), 3)
    assert rows == [2, 2, 2]
