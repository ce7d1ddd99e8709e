"""examples/compiled_decoder.py: one graph, the tokens of the eager decoder, and each prompt those it gets alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch._dynamo.utils import counters

PROMPTS = [[5, 17, 3, 80, 41], [9, 9, 30, 2, 77, 12, 64, 51, 8, 1, 33], [20, 6]]
NEW_TOKENS = 10


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "compiled_decoder.py"
    spec = importlib.util.spec_from_file_location("compiled_decoder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def decoder(example: ModuleType) -> torch.nn.Module:
    torch.manual_seed(0)
    return example.Decoder()


def test_the_compiled_decoder_gives_the_eager_ones_tokens(example: ModuleType, decoder: torch.nn.Module) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(decoder, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        ours = example.Engine(compiled, len(PROMPTS)).generate(PROMPTS, NEW_TOKENS)
    assert ours == example.Engine(decoder, len(PROMPTS)).generate(PROMPTS, NEW_TOKENS)
    assert counters["stats"]["unique_graphs"] == 1
    assert len({token for text in ours for token in text}) > 5


def test_the_compiled_decoder_gives_each_prompt_the_tokens_it_gets_alone(example: ModuleType, decoder: torch.nn.Module) -> None:
    together = example.Engine(decoder, len(PROMPTS)).generate(PROMPTS, NEW_TOKENS)
    assert together == [example.Engine(decoder, 1).generate([prompt], NEW_TOKENS)[0] for prompt in PROMPTS]
