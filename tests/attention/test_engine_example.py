"""The example engine: whatever else runs, each prompt gets the tokens that it gets alone."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from .helpers import oracle

SEEDS, PROMPTS = range(3), 14
PATH = Path(__file__).parents[2] / "examples" / "engine.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("engine_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def module() -> Any:
    return load()


@pytest.fixture(scope="module")
def roomy(module: Any) -> Any:
    """An engine in which a prompt runs alone."""
    return module.Engine(num_tokens=1000, dtype="float64")


@pytest.fixture(scope="module")
def alone(roomy: Any) -> list[list[list[int]]]:
    """What each seed's prompts get alone."""
    return [[run_alone(roomy, *each) for each in draw_prompts(seed, PROMPTS)] for seed in SEEDS]


def run_alone(roomy: Any, prompt: list[int], new: int) -> list[int]:
    request = roomy.submit(prompt, new)
    while roomy.running or roomy.waiting:
        roomy.step()
    roomy.close()
    return request.tokens


def draw_prompts(seed: int, count: int) -> list[tuple[list[int], int]]:
    """Prompts of random lengths, most of which begin alike."""
    generator = random.Random(seed)
    preambles = [[generator.randrange(96) for _ in range(length)] for length in (9, 22, 40)]
    prompts = []
    for _ in range(count):
        tail = [generator.randrange(96) for _ in range(generator.randint(1, 35))]
        preamble = generator.choice([*preambles, []])
        prompts.append((preamble + tail, generator.randint(1, 40)))
    return prompts


def serve(engine: Any, prompts: list[tuple[list[int], int]], seed: int) -> list[list[int]]:
    """Submit them between steps, at random, and run to the end."""
    generator = random.Random(seed)
    requests = []
    for prompt, new in prompts:
        requests.append(engine.submit(prompt, new))
        for _ in range(generator.choice([0, 0, 1, 5, 20])):
            engine.step()
    for _ in range(5000):
        if not (engine.waiting or engine.running):
            break
        engine.step()
    assert not engine.waiting
    assert not engine.running
    return [request.tokens for request in requests]


@pytest.mark.parametrize("num_tokens", [128, 320])
def test_each_prompt_gets_the_tokens_that_it_gets_alone(module: Any, alone: list[list[list[int]]], num_tokens: int) -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        engine = module.Engine(num_tokens=num_tokens, dtype="float64")
        assert serve(engine, draw_prompts(seed, PROMPTS), seed) == alone[seed]
        engine.close()
        assert all(pool.num_free == pool.num_pages for pool in engine.pools)
        assert not any(pool.num_shared for pool in engine.pools)
        assert engine.attention.lost_tokens == engine.attention.lost_pages == 0
        counts += engine.counts
    assert counts["pages behind windows"] > 100
    assert counts["shared tokens"] > 40
    assert counts["preemptions"] >= 5 or num_tokens > 128


@pytest.mark.parametrize("seed", range(2))
def test_alone_a_prompt_gets_what_the_definition_gives(roomy: Any, seed: int) -> None:
    for prompt, new in draw_prompts(seed, 3):
        assert run_alone(roomy, prompt, new) == run_by_definition(roomy.model, prompt, new)


def run_by_definition(model: Any, prompt: list[int], new: int) -> list[int]:
    """Everything computed anew for every token, without pages."""
    tokens = list(prompt)
    for _ in range(new):
        hidden = model.embedding[tokens] + model.positions[: len(tokens)]
        for layer, (w_q, w_k, w_v, w_out) in zip(model.shape.layers, model.projections, strict=True):
            q = (hidden @ w_q).view(-1, layer.num_heads, layer.head_dim)
            k = (hidden @ w_k).view(-1, layer.num_kv_heads, layer.head_dim)
            v = (hidden @ w_v).view(-1, layer.num_kv_heads, layer.head_dim)
            mask = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
            for position in range(len(tokens)):
                mask[position, oracle.seen(layer, position, len(tokens))] = True
            k, v = (part.repeat_interleave(layer.num_heads // layer.num_kv_heads, dim=1) for part in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) * layer.softmax_scale
            weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
            hidden = hidden + torch.tanh(torch.einsum("hqk,khd->qhd", weights, v).flatten(1) @ w_out)
        tokens.append(int((hidden[-1] @ model.embedding.T).argmax()))
    return tokens


def test_a_prompt_that_could_never_run_is_refused(module: Any) -> None:
    engine = module.Engine(num_tokens=64, dtype="float64")
    for prompt, new in (([], 4), ([1] * 60, 5), ([1], 0)):
        with pytest.raises(ValueError, match="at most 64"):
            engine.submit(prompt, new)
    for prompt in ([3, 96], [-1, 3]):
        with pytest.raises(ValueError, match="expected 0 to 95"):
            engine.submit(prompt, 4)
    assert not engine.waiting


def test_the_example_engine_runs_as_a_script() -> None:
    environment = os.environ | {"PYTHONPATH": str(PATH.parents[1])}
    done = subprocess.run([sys.executable, str(PATH)], capture_output=True, text=True, check=True, timeout=60, env=environment)
    assert "40 requests served" in done.stdout
    assert "pages still held: [0, 0]" in done.stdout
