"""Whole tiny models through adapters over stand-ins, with the portable calls in the interpreter: the CPU backend's tokens.

Adapters take half precision alone, and bfloat16 rounds differently in every order of summing: logits may differ by NOISE. So
the models are drawn from seeds with which the CPU's best token leads the next one by more than twice that at every step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hal
from hal.common.backends.registry import find_backend

from .helpers.cells import CELLS, Cell

if TYPE_CHECKING:
    from hal.models import Model

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run this file alone, with TRITON_INTERPRET=1")
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
models = pytest.importorskip("hal.models")
tiny = pytest.importorskip("tests.models.helpers.tiny")

NOISE = 0.07
PROMPTS = [[5, 9, 2, 29, 21, 7, 7, 12, 30, 3, 4, 17], [8, 20, 23]]
NUM_TOKENS = 3
SMALL = {"vocab_size": 32, "num_hidden_layers": 2}
# The widths that every adapter takes. The first prompt is longer than index_topk, so it is pruned.
WIDTHS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "index_head_dim": 128}
# No layer routes to experts: rounding could send a token to others.
SPARSE = tiny.LATENT | tiny.SPARSE | SMALL | WIDTHS | {"first_k_dense_replace": 4}


def llama() -> Any:
    return transformers.LlamaConfig(**tiny.COMMON | SMALL, num_key_value_heads=2, head_dim=64)


def deepseek() -> Any:
    return transformers.DeepseekV32Config(**SPARSE)


def shared_indexer() -> Any:
    return transformers.GlmMoeDsaConfig(**SPARSE | {"num_hidden_layers": 4, "index_topk_freq": 2, "index_skip_topk_offset": 2})


def composite(text: Callable[[], Any]) -> Any:
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    return transformers.LlavaConfig(text_config=text(), vision_config=vision, image_token_index=31, tie_word_embeddings=False)


MODELS: dict[str, tuple[int, Callable[[], Any]]] = {
    "llama": (56, llama),
    "deepseek": (18, deepseek),
    "shared-indexer": (67, shared_indexer),
    "composite-deepseek": (11, lambda: composite(deepseek)),
    "composite-shared-indexer": (2, lambda: composite(shared_indexer)),
}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint, its shape and what the CPU backend makes of it: tokens, and the logits of every step."""

    folder: Path
    shape: hal.config.ModelShape
    tokens: list[list[int]]
    logits: Any


@pytest.fixture(scope="module", params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    seed, make = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    tiny.build(make(), seed).save_pretrained(folder)
    model = load(folder, "cpu", "cpu")
    return Saved(folder, model.plan.shape, *generate(model))


def load(folder: Path, device: hal.Device | str, backend: str) -> Model:
    limits = hal.Limits(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32)
    return models.load(folder, device=device, dtype="bfloat16", backend=backend, limits=limits, progress=False)


def generate(model: Model) -> tuple[list[list[int]], Any]:
    """The tokens of each prompt, and the logits [steps and prompts, vocabulary] that they were chosen by."""
    logits = []
    forward = model.forward

    def forward_and_note(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        logits.append(result.float())
        return result

    model.forward = forward_and_note
    tokens = [list(completion.tokens) for completion in model.generate(PROMPTS, NUM_TOKENS)]
    return tokens, torch.cat(logits)


def test_tokens_of_the_cpu_are_clear(saved: Saved) -> None:
    best, second = saved.logits.topk(2).values.unbind(1)
    assert (best - second).min() > 2 * NOISE


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_a_model_on_adapters_generates_what_it_does_on_the_cpu(saved: Saved, cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    software = hal.Software({cell.library: cell.release})
    wanted = hal.Request(saved.shape.layer(0), cell.device, "bfloat16", software=software)
    if hal.supports_combination(wanted)[cell.backend]:
        pytest.skip(f"{cell.backend} does not serve this layer on {cell.arch} with {cell.library}")
    # As on a machine that has this device and this library alone.
    monkeypatch.setattr("hal.common.planning.plan.installed", lambda: software)
    with cell.installed():
        model = load(saved.folder, replace(cell.device, present=True), cell.backend)
        tokens, logits = generate(model)
    assert tokens == saved.tokens
    torch.testing.assert_close(logits, saved.logits, atol=NOISE, rtol=0.0)
    attends = {call for call in find_backend(cell.backend).provides if call in ("paged_attention", "sparse_mla")}
    for selection in model.plan.selections:
        assert cell.backend in {selection.providers.get(f"{call}.decode") for call in attends}
