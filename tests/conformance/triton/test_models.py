"""Whole tiny models on the portable kernels: the tokens that the CPU backend gives, and no launch that was not foreseen."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hal
from hal.common.triton import specialisations
from hal.common.triton.launch import Launch, Launcher, LaunchKey

if TYPE_CHECKING:
    from hal.models import Model

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
models = pytest.importorskip("hal.models")

TARGETS = ("cuda:sm_90", "rocm:gfx942", "xpu:pvc")
LIMITS = hal.Limits(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32, block_size=16)
PROMPTS = [[5, 9, 2, 60, 31, 7, 7, 12, 90, 3, 4, 17], [44], [8, 100, 23]]
COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
SPARSE: dict[str, Any] = COMMON | {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "first_k_dense_replace": 2,
    "tie_word_embeddings": False,
    "index_topk": 8,
    "index_head_dim": 32,
    "index_n_heads": 16,
}


def llama() -> Any:
    return transformers.LlamaConfig(**COMMON, num_key_value_heads=2)


def windowed() -> Any:
    return transformers.GptOssConfig(
        **(COMMON | {"intermediate_size": 32}),
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
    )


def deepseek() -> Any:
    return transformers.DeepseekV32Config(**SPARSE)


def shared_indexer() -> Any:
    kwargs = SPARSE | {"num_hidden_layers": 4, "index_topk_freq": 2, "index_skip_topk_offset": 2}
    return transformers.GlmMoeDsaConfig(**kwargs)


def capped() -> Any:
    kwargs = COMMON | {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}
    return transformers.Gemma3TextConfig(**kwargs, layer_types=["sliding_attention", "full_attention"])


def compressed() -> Any:
    kwargs = COMMON | {"num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 8}
    return transformers.DeepseekV4Config(
        **kwargs,
        q_lora_rank=32,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        hc_mult=2,
        hc_sinkhorn_iters=2,
        num_hash_layers=1,
        sliding_window=6,
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=16,
        index_head_dim=16,
        index_topk=2,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        tie_word_embeddings=False,
    )


def composite() -> Any:
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    return transformers.LlavaConfig(
        text_config=deepseek(), vision_config=vision, image_token_index=127, tie_word_embeddings=False
    )


def save(config: Any, folder: Path) -> Path:
    """A checkpoint of an untrained float32 model with weights large enough to tell tokens apart."""
    is_composite = config.get_text_config(decoder=True) is not config
    auto = transformers.AutoModelForImageTextToText if is_composite else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    module = auto.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.08)
    module.save_pretrained(folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[llama, windowed, capped, deepseek, shared_indexer, compressed, composite],
    ids=lambda make: make.__name__,
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(request.param(), tmp_path_factory.mktemp(request.param.__name__))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    return generate(load(folder, "cpu"))


def load(folder: Path, device: hal.Device | str) -> Model:
    return models.load(folder, device=device, limits=LIMITS, progress=False)


def generate(model: Model) -> list[list[int]]:
    return [list(completion.tokens) for completion in model.generate(PROMPTS, 4)]


def planned_keys(model: Model) -> set[LaunchKey]:
    """The keys of everything that the plan's layers compile."""
    requests = [
        hal.Request(layer, model.plan.device, model.plan.dtype, selection.kv_layout, block_size=model.plan.block_size)
        for layer, selection in zip(model.plan.shape.layers, model.plan.selections, strict=True)
    ]
    return {found.key for request in requests for found in specialisations(request)}


@pytest.mark.parametrize("target", TARGETS)
def test_a_model_on_portable_kernels_generates_what_it_does_on_the_cpu(
    folder: Path, expected: list[list[int]], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: set[LaunchKey] = set()
    monkeypatch.setattr(Launcher, "run", record(launched))
    model = load(folder, hal.Device.from_arch(target, torch_device="cpu"))
    assert generate(model) == expected
    assert launched
    assert not launched - planned_keys(model)
    # Nothing is merged after any call on one rank, so each applies its own sink.
    assert not [key for key in launched if key.kernel == "merge:scale_by_sink"]


@pytest.mark.parametrize("make", [windowed, deepseek, compressed], ids=lambda make: make.__name__)
def test_a_model_on_quantised_caches_generates_what_it_does_on_the_cpu(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one platform alone: how bytes are read has nothing to do with the others, and gfx942 has an encoding of its own."""
    folder, launched = save(make(), tmp_path), set()
    monkeypatch.setattr(import_module("hal.models.load"), "plan", partial(hal.plan, kv_layout="fp8"))
    expected = generate(load(folder, "cpu"))
    monkeypatch.setattr(Launcher, "run", record(launched))
    model = load(folder, hal.Device.from_arch("cuda:sm_90", torch_device="cpu"))
    assert generate(model) == expected
    assert {key.kernel for key in launched} & {"records:write_records", "codes:write_codes"}
    assert not launched - planned_keys(model)


def record(launched: set[LaunchKey]) -> Callable[[Launcher, Launch], None]:
    """Launcher.run, noting the key of everything that it runs."""
    run = Launcher.run

    def run_and_note(self: Launcher, launch: Launch) -> None:
        stop = self.watch(launched.add)
        run(self, launch)
        stop()

    return run_and_note
