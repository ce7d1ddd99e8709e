"""Block-wise fp8 and MXFP4 as they are published: expanded as they are read; whatever else is stored is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import hal
from hal.config import HalError
from hal.models import CheckpointError, load, plan_checkpoint
from hal.models.dequantising import BlockwiseDequantize

from .helpers import oracle, quantised, tiny

LIMITS = hal.Limits(64, 2, 48, block_size=16)
# 192 is a whole block and half a one, which no number of equal blocks makes.
WIDE = {"hidden_size": 192, "intermediate_size": 256, "num_hidden_layers": 2}
FOLDERS = {
    "fp8-deepseek-v3": lambda folder: quantised.write_fp8(transformers.DeepseekV3Config(**(tiny.LATENT | WIDE)), folder),
    "fp8-deepseek-v32": lambda folder: quantised.write_fp8(
        transformers.DeepseekV32Config(**(tiny.LATENT | tiny.SPARSE | WIDE)), folder
    ),
    "fp8-llama": lambda folder: quantised.write_fp8(transformers.LlamaConfig(**(tiny.COMMON | WIDE)), folder),
    "mxfp4-gpt-oss": lambda folder: quantised.write_mxfp4(tiny.gpt_oss(), folder),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_published_quantised_checkpoint_computes_what_its_numbers_say(name: str, tmp_path: Path) -> None:
    module = FOLDERS[name](tmp_path)
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    (tokens,) = oracle.random_prompts([23])
    (found,) = oracle.paged_logits(model, [tokens], [[17], [1], [5]])
    torch.testing.assert_close(found, oracle.eager_logits(module, tokens), atol=1e-5, rtol=1e-5)
    assert plan_checkpoint(tmp_path).is_complete
    assert not hasattr(model.module.config, "quantization_config")
    expected = dict(module.named_parameters())
    for parameter, tensor in model.module.named_parameters():
        assert torch.equal(tensor, expected[parameter]), parameter


def test_whole_blocks_are_expanded_as_transformers_does(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**(tiny.COMMON | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}))
    quantised.write_fp8(config, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ours = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    for name, tensor in theirs.named_parameters():
        assert torch.equal(ours.module.get_parameter(name), tensor), name


def test_short_blocks_take_the_size_that_the_config_states() -> None:
    settings = transformers.FineGrainedFP8Config(weight_block_size=(128, 128))
    operation = BlockwiseDequantize(type("Quantizer", (), {"quantization_config": settings}))
    weight, scales = torch.ones(576, 192).to(torch.float8_e4m3fn), torch.arange(10.0).view(5, 2)
    found = operation._dequantize_one(weight, scales, torch.float32)
    assert torch.equal(found, scales.repeat_interleave(128, 0)[:576].repeat_interleave(128, 1)[:, :192])


def test_a_weight_without_its_scales_is_refused(tmp_path: Path) -> None:
    quantised.write_fp8(transformers.LlamaConfig(**(tiny.COMMON | WIDE)), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight_scale_inv"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight: stored as F8_E4M3, which needs a scale"):
        load(tmp_path, device="cpu", limits=LIMITS, progress=False)


def test_scales_of_another_number_of_blocks_are_refused(tmp_path: Path) -> None:
    quantised.write_fp8(transformers.LlamaConfig(**(tiny.COMMON | WIDE)), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale_inv"] = torch.ones(5, 2)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.up_proj\.weight: its parts cannot be put together"):
        load(tmp_path, device="cpu", limits=LIMITS, progress=False)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "GPTQ"),
        ({"quant_method": "awq", "bits": 4}, "AWQ"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "gguf"}, "GGUF"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8 with scales"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_other_format_is_refused_by_its_name(method: dict[str, object], name: str, tmp_path: Path) -> None:
    tiny.build(tiny.llama()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    with pytest.raises(HalError, match=name):
        load(tmp_path, device="cpu", limits=LIMITS, progress=False)
