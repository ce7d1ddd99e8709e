"""Weights that are not plain numbers are refused by the name of their format, whatever strict says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedConfig

from hal.models import CheckpointError, load, plan_checkpoint
from hal.models.quantisation import METHODS

from .helpers import composites, folders, tiny
from .helpers.headers import Extras, plan_with

WEIGHT = "model.layers.0.self_attn.q_proj.weight"
FRONT = WEIGHT.removesuffix(".weight")
FLOAT8: tuple[str, tuple[int, ...]] = ("F8_E4M3", (64, 64))
BYTES: tuple[str, tuple[int, ...]] = ("U8", (64, 32))
WORDS: tuple[str, tuple[int, ...]] = ("I32", (8, 64))
SCALES: tuple[str, tuple[int, ...]] = ("F32", (64, 1))

REFUSED = [method for method in METHODS if method != "mxfp4"]
"""All but what is expanded as it is read; fp8 is, too, where its config states the size of its blocks."""

FORMATS: dict[str, tuple[str, Extras]] = {
    "gptq": (
        "GPTQ",
        {f"{FRONT}.qweight": WORDS, f"{FRONT}.qzeros": WORDS, f"{FRONT}.scales": SCALES, f"{FRONT}.g_idx": ("I32", (64,))},
    ),
    "awq": ("AWQ", {f"{FRONT}.qweight": WORDS, f"{FRONT}.qzeros": WORDS, f"{FRONT}.scales": SCALES}),
    "compressed-tensors": (
        "compressed-tensors",
        {f"{FRONT}.weight_packed": WORDS, f"{FRONT}.weight_scale": SCALES, f"{FRONT}.weight_shape": ("I64", (2,))},
    ),
    "nvfp4-compressed-tensors": (
        r"NVFP4 \(compressed-tensors\)",
        {
            f"{FRONT}.weight_packed": BYTES,
            f"{FRONT}.weight_scale": ("F8_E4M3", (64, 4)),
            f"{FRONT}.weight_global_scale": ("F32", (1,)),
        },
    ),
    "nvfp4-modelopt": (
        r"NVFP4 \(ModelOpt\)",
        {WEIGHT: BYTES, f"{WEIGHT}_scale": ("F8_E4M3", (64, 4)), f"{WEIGHT}_scale_2": ("F32", ())},
    ),
    "bitsandbytes-4": (
        "bitsandbytes",
        {WEIGHT: ("U8", (2048, 1)), f"{WEIGHT}.absmax": ("U8", (64,)), f"{WEIGHT}.quant_state.bitsandbytes__nf4": ("U8", (99,))},
    ),
    "bitsandbytes-8": ("bitsandbytes", {WEIGHT: ("I8", (64, 64)), f"{FRONT}.SCB": ("F32", (64,))}),
    "block-fp8": ("block-wise fp8", {WEIGHT: FLOAT8, f"{WEIGHT}_scale_inv": ("F32", (1, 1))}),
    "scaled-fp8": ("fp8 with a scale", {WEIGHT: FLOAT8, f"{WEIGHT}_scale": ("F32", (1,))}),
    "mxfp8": ("MXFP8", {WEIGHT: FLOAT8, f"{WEIGHT}_scale": ("F8_E8M0", (64, 2))}),
    "int8": ("int8 with a scale", {WEIGHT: ("I8", (64, 64)), f"{WEIGHT}_scale": SCALES}),
    "eetq": ("EETQ", {WEIGHT: ("I8", (64, 64)), f"{WEIGHT}_scales": SCALES}),
    "bitnet": ("BitNet", {WEIGHT: ("U8", (16, 64)), f"{WEIGHT}_scale": ("F32", (1,))}),
    "hqq": ("HQQ", {f"{FRONT}.W_q": BYTES, f"{FRONT}.zero": SCALES, f"{FRONT}.nbits": ("I64", ())}),
    "torchao": ("torchao", {f"{WEIGHT}:qdata": FLOAT8, f"{WEIGHT}:scale": SCALES}),
    "quanto": ("quanto", {f"{WEIGHT}._data": ("I8", (64, 64)), f"{WEIGHT}._scale": SCALES}),
    "aqlm": ("AQLM", {f"{FRONT}.codes": ("I16", (64, 8, 1)), f"{FRONT}.codebooks": ("F16", (1, 256, 1, 8))}),
    "vptq": ("VPTQ", {f"{FRONT}.centroids.weight": SCALES, f"{FRONT}.indices": WORDS}),
    "spqr": ("SpQR", {f"{FRONT}.dense_weights": ("I64", (64,)), f"{FRONT}.row_offsets": ("I32", (65,))}),
    "float4": ("packed weights", {WEIGHT: ("F4", (64, 64))}),
    "unnamed-scales": ("packed weights", {f"{WEIGHT}.exponents": ("F8_E8M0", (64, 2))}),
}


@pytest.mark.parametrize(("name", "tensors"), FORMATS.values(), ids=list(FORMATS))
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_a_stored_format_is_named_from_its_tensors(name: str, tensors: Extras, strict: bool) -> None:
    plan = plan_with(tiny.llama(), tensors, without=(WEIGHT,))
    assert not plan.is_complete
    with pytest.raises(CheckpointError, match=rf"stored as {name} \(.*; only unquantised checkpoints can be loaded"):
        plan.raise_if_bad(strict)


def published_mxfp4(expert: str) -> Extras:
    return {f"{expert}_blocks": ("U8", (4, 64, 2, 16)), f"{expert}_scales": ("U8", (4, 64, 2))}


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_published_gpt_oss_experts_are_named(strict: bool) -> None:
    experts = "model.layers.0.mlp.experts.gate_up_proj"
    plan = plan_with(tiny.gpt_oss(), published_mxfp4(experts), without=(f"{experts}",))
    with pytest.raises(CheckpointError, match=r"stored as MXFP4 \(model\.layers\.0\.mlp\.experts\.gate_up_proj_blocks and"):
        plan.raise_if_bad(strict)


@pytest.mark.parametrize("dtype", ["U8", "I8", "I32", "I64", "U16", "U32"])
@pytest.mark.parametrize("shape", [(8, 64), (2, 8, 64), (4, 64, 2, 16)], ids=["matrix", "stack", "blocks"])
def test_packed_words_of_no_known_format_are_refused(dtype: str, shape: tuple[int, ...]) -> None:
    plan = plan_with(tiny.llama(), {f"{FRONT}.data": (dtype, shape)}, without=(WEIGHT,))
    with pytest.raises(CheckpointError, match=rf"{FRONT}\.data: stored packed as {dtype}; only unquantised"):
        plan.raise_if_bad(strict=False)


@pytest.mark.parametrize(
    "dtype", ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "I16", "BOOL", "C64", "F4", "F6_E2M3"]
)
def test_a_weight_of_another_kind_of_number_is_refused(dtype: str) -> None:
    plan = plan_with(tiny.llama(), {WEIGHT: (dtype, (64, 64))})
    with pytest.raises(CheckpointError, match=rf"{WEIGHT}: stored as {dtype}"):
        plan.raise_if_bad(strict=False)


@pytest.mark.parametrize("method", [*REFUSED, "compressed-tensors", "torchao", "quanto", "some-new-method"])
@pytest.mark.parametrize("make", [tiny.llama, composites.kimi_k25], ids=["root", "text-config"])
def test_a_format_that_the_config_states_is_named(method: str, make: Callable[[], PreTrainedConfig]) -> None:
    config = make()
    text = config.get_text_config()
    text.quantization_config = {"quant_method": method, "format": "pack-quantized"}
    plan = plan_with(config)
    where = "" if text is config else "text_config."
    name = METHODS.get(method, method).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(CheckpointError, match=rf"stored as {name}.*\(config\.json's {where}quantization_config\)"):
        plan.raise_if_bad(strict=False)


@pytest.mark.parametrize(
    ("file", "content", "name"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "GPTQ"),
        ("quant_config.json", {"w_bit": 4}, "AWQ"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
        ("hf_quant_config.json", [], "ModelOpt"),
    ],
)
def test_a_tool_s_own_file_names_its_format(file: str, content: object, name: str, tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"stored as {name} \({file}\)"):
        load(tmp_path, device="cpu", progress=False, strict=False)


def test_a_stored_format_is_refused_by_load_as_by_the_plan(tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    folders.rewrite(
        tmp_path,
        lambda tensors: (
            {
                (f"{FRONT}.qweight" if name == WEIGHT else name): tensor.to(torch.int32) if name == WEIGHT else tensor
                for name, tensor in tensors.items()
            }
            | {f"{FRONT}.qzeros": torch.zeros(1, 8, dtype=torch.int32), f"{FRONT}.scales": torch.ones(1, 64)}
        ),
    )
    assert str(plan_checkpoint(tmp_path).stored_format).startswith("AWQ")
    with pytest.raises(CheckpointError, match="stored as AWQ"):
        load(tmp_path, device="cpu", progress=False, strict=False)


def test_a_gguf_file_alone_is_named(tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-Q4_K_M.gguf")
    with pytest.raises(CheckpointError, match=r"only model-Q4_K_M\.gguf; convert it"):
        plan_checkpoint(tmp_path)
