"""Who serves two models on each arch, with which provider per call, and every refusal with its values.

The golden file was reviewed against the vendors' stated limits. Write it anew with UPDATE_GOLDEN set, then read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import hal
from hal.config import ModelShape, read_shape

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden" / "explain.txt"
TARGETS = ("cuda:sm_80", "cuda:sm_90", "cuda:sm_100", "cuda:sm_120", "rocm:gfx942", "rocm:gfx1100", "xpu:pvc", "cpu")
LLAMA_3_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
DECLARED = {
    "no libraries": hal.Software({}),
    "the first of each": hal.Software(
        {
            "flash_attn": "2.8.3",
            "flash_attn_3": "3.0.0",
            "flash_attn_4": "4.0.0b36",
            "flash_mla": "1.0.0",
            "aiter": "0.1.7.post2.dev18",
            "vllm_xpu_kernels": "0.1.16.2",
            "ipex": "2.8.0",
        }
    ),
    "the engine's": hal.Software(
        {"vllm_flash_attn": "0.33", "vllm_flash_mla": "0.33", "aiter": "0.1.21.post2", "vllm_xpu_kernels": "0.1.16.2"}
    ),
    "unreadable ones": hal.Software(
        {"flash_attn_3": "nightly", "flash_attn_4": "4.0.0", "flash_mla": "0.9", "aiter": "9.9", "vllm_xpu_kernels": "0.1.16.2"},
        {"flash_attn_4": "OSError: libcuda.so.1", "vllm_xpu_kernels": "ImportError: libze_loader.so.1"},
    ),
}


def models() -> dict[str, ModelShape]:
    return {
        "DeepSeek-V3.2": read_shape(ROOT / "examples" / "composite-deepseek-v3.2.json"),
        "Llama-3-8B": read_shape(LLAMA_3_8B),
    }


def explain(shape: ModelShape, target: str, software: hal.Software, parallel: hal.Parallel) -> Iterator[str]:
    device = hal.Device.from_arch(target)
    request = hal.Request(shape.layer(0), device, "bfloat16", software=software, parallel=parallel)
    try:
        selection = hal.select(request)
    except hal.NoBackend as refused:
        yield "    nobody"
        yield from _refusals(device, refused.rejected)
        return
    yield f"    {selection.backend}, pages of {selection.block_size}, {selection.kv_layout}"
    by_provider: dict[str, list[str]] = {}
    for call, provider in selection.providers.items():
        by_provider.setdefault(provider, []).append(call)
    yield from (f"      {provider}: {' '.join(calls)}" for provider, calls in by_provider.items())
    yield from _refusals(device, selection.rejected)


def _refusals(device: hal.Device, rejected: Mapping[str, tuple[hal.Reason, ...]]) -> Iterator[str]:
    for name, reasons in rejected.items():
        if name.startswith(device.platform):
            yield from (f"      not {name}: {reason}" for reason in reasons)


def report() -> str:
    lines = []
    for model, shape in models().items():
        tp = 8 if shape.is_mla else 1
        for target in TARGETS:
            answers: dict[str, list[str]] = {}
            for words, software in DECLARED.items():
                answers.setdefault("\n".join(explain(shape, target, software, hal.Parallel(tp=tp))), []).append(words)
            lines.append(f"{model} over {tp} ranks on {target}")
            lines += [f"  with {', '.join(words)}:\n{answer}" for answer, words in answers.items()]
    return "\n".join(lines) + "\n"


def test_explanations_are_the_reviewed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAL_BACKEND", raising=False)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(report())
    assert report() == GOLDEN.read_text()
