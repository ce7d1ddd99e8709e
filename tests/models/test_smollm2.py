"""A real model: SmolLM2-135M gives the same greedy text on hal as on transformers."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hal.common.contract.limits import Limits
from hal.models import Model, load

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about rain.",
    "What is 7 times 8?",
    "Explain gravity to a child.",
)


def fetcher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_smollm2", ROOT / "examples" / "fetch_smollm2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder() -> Path:
    fetch = fetcher()
    if not fetch.is_fetched(fetch.DEFAULT_FOLDER) and os.environ.get("HAL_TEST_FETCH") == "0":
        pytest.skip("SmolLM2 is not in .cache and HAL_TEST_FETCH=0 forbids fetching it; run examples/fetch_smollm2.py")
    try:
        return fetch.fetch()
    except fetch.FetchError as error:
        pytest.skip(f"SmolLM2 could not be fetched: {error}")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, device="cpu", limits=Limits(256, 8, 256), progress=False)


def test_five_questions_get_the_same_greedy_text_as_on_transformers(model: Model, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
        for text in QUESTIONS
    ]
    for prompt, generation in zip(prompts, model.generate(prompts, 16), strict=True):
        expected = reference.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0, len(prompt) :]
        assert generation.text == tokenizer.decode(expected, skip_special_tokens=True)
        assert list(generation.tokens) == expected.tolist()


def test_the_model_knows_the_capital_of_france(model: Model, folder: Path) -> None:
    assert "Paris" in str(model.generate(["The capital of France is"], 4)[0].text)


def test_every_tensor_of_the_folder_is_accounted_for(model: Model) -> None:
    assert model.report is not None
    assert model.report.is_complete
    assert model.report.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert model.module.lm_head.weight is model.module.model.embed_tokens.weight
