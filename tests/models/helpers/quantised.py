"""Checkpoint folders as DeepSeek-V3 and gpt-oss are published, beside the plain model that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from . import tiny

BLOCK = 128
FP8: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}
MXFP4: dict[str, Any] = {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4",
}
FOURS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FOURS = torch.cat([FOURS, -FOURS])


def state_method(folder: Path, method: dict[str, Any]) -> None:
    """Add the quantisation to a folder's config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": method}))


def write_fp8(config: PreTrainedConfig, folder: Path) -> PreTrainedModel:
    """Every linear weight in blocks of 128 x 128, the last ones short, with a scale each; returns the model they stand for."""
    plain = folder / "plain"
    tiny.build(config).save_pretrained(plain)
    tensors = load_file(plain / "model.safetensors")
    stored, exact = {}, {}
    for name, tensor in tensors.items():
        is_linear = tensor.ndim == 2 and not any(part in name for part in ("embed", "lm_head", "mlp.gate.", "weights_proj"))
        if not is_linear:
            stored[name] = exact[name] = tensor
            continue
        rows, columns = (-(-size // BLOCK) for size in tensor.shape)
        scales = torch.empty(rows, columns)
        quantised, expanded = torch.empty_like(tensor, dtype=torch.float8_e4m3fn), torch.empty_like(tensor)
        for row in range(rows):
            for column in range(columns):
                place = slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK)
                scales[row, column] = tensor[place].abs().max() / 448
                quantised[place] = (tensor[place] / scales[row, column]).to(torch.float8_e4m3fn)
                expanded[place] = quantised[place].float() * scales[row, column]
        stored |= {name: quantised, f"{name}_scale_inv": scales}
        exact[name] = expanded
    return _write(folder, plain, stored, exact, FP8)


def write_mxfp4(config: PreTrainedConfig, folder: Path) -> PreTrainedModel:
    """Experts in blocks of 32 four-bit numbers, two to a byte, with an exponent each; returns the model they stand for."""
    plain = folder / "plain"
    tiny.build(config).save_pretrained(plain)
    tensors = load_file(plain / "model.safetensors")
    numbers = torch.Generator().manual_seed(0)
    stored, exact = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = exact[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=numbers)
        scales = torch.randint(120, 124, (experts, outputs, inputs // 32), dtype=torch.uint8, generator=numbers)
        fours = torch.stack([FOURS[(blocks & 15).long()], FOURS[(blocks >> 4).long()]], dim=-1).flatten(-2)
        exact[name] = (fours * (scales.float() - 127).exp2().unsqueeze(-1)).flatten(-2).mT.contiguous()
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return _write(folder, plain, stored, exact, MXFP4)


def _write(
    folder: Path, plain: Path, stored: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], method: dict[str, Any]
) -> PreTrainedModel:
    save_file(exact, plain / "model.safetensors", metadata={"format": "pt"})
    module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text((plain / "config.json").read_text())
    state_method(folder, method)
    return module.eval()
