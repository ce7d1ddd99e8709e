"""Stored quantisations that are expanded as they are read, by transformers' own quantisers: block-wise fp8 and MXFP4."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.quantizers.auto import AutoHfQuantizer

from .errors import UnsupportedModelError, describe

QUANTIZER = "_hal_quantizer"
"""Attribute of a module that is filled from quantised files: the quantiser that expands them."""

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SCALES = (("weight", "weight_scale_inv"), ("weight", "scale"), ("weight", "qscale_weight"), ("_blocks", "_scales"))
"""How the name of a quantised weight ends, and that of its scales, as DeepSeek and gpt-oss are published."""


class BlockwiseDequantize(Fp8Dequantize):
    """transformers' operation, with blocks of the size that the config states: the last one of a row or column may be short.

    transformers takes the size from the number of scales, which is another where the blocks do not fill the matrix (576 rows
    of DeepSeek-V3's kv_a_proj_with_mqa lie in 5 blocks of 128).
    """

    def _dequantize_one(
        self, quantized: torch.Tensor, scales: torch.Tensor, output_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        block = self.hf_quantizer.quantization_config.weight_block_size
        shape = quantized.shape[-2:]
        grid = tuple(-(-size // each) for size, each in zip(shape, block, strict=True))
        if quantized.dtype not in FLOAT8 or tuple(scales.shape[-2:]) != grid or not scales.dtype.is_floating_point:
            found: torch.Tensor = super()._dequantize_one(quantized, scales, output_dtype=output_dtype)
            return found
        each_row = scales.float().repeat_interleave(block[0], -2)[..., : shape[0], :]
        return (quantized.float() * each_row.repeat_interleave(block[1], -1)[..., : shape[1]]).to(output_dtype or torch.bfloat16)


def stored_method(config: PreTrainedConfig) -> str | None:
    """The name of the config's quantisation if it is one that is expanded as it is read; None for plain weights and others."""
    content = _content(config)
    method = str(content.get("quant_method") or "").lower()
    is_known = method == "mxfp4" or (method == "fp8" and content.get("weight_block_size"))
    return method if is_known else None


def prepare_dequantising(module: PreTrainedModel) -> None:
    """Let a meta module be filled from quantised files, if its config says that they are; its own weights stay plain.

    UnsupportedModelError where transformers' quantiser does not take the config's settings.
    """
    method = stored_method(module.config)
    if method is None:
        return
    try:
        quantizer = AutoHfQuantizer.from_config(dict(_content(module.config)), pre_quantized=True)
        quantizer.quantization_config.dequantize = True
        if method == "fp8":
            quantizer.get_load_operations = lambda: {"dequantize": BlockwiseDequantize}
        quantizer.preprocess_model(module)
    except Exception as error:
        raise UnsupportedModelError(
            f"transformers' quantiser for {method} does not take the config's quantization_config: {describe(error)}; correct "
            "it to what the weights were stored with"
        ) from error
    setattr(module, QUANTIZER, quantizer)


def quantizer_of(module: PreTrainedModel) -> Any:
    """The quantiser that expands a module's files, None where they are plain."""
    return module.__dict__.get(QUANTIZER)


def finish_dequantising(module: PreTrainedModel) -> None:
    """Make a filled module a plain one, as its weights are."""
    quantizer = module.__dict__.pop(QUANTIZER, None)
    if quantizer is not None:
        quantizer.remove_quantization_config(module)


def has_scales(key: str, keys: Collection[str]) -> bool:
    """Whether a quantised tensor lies beside its scales, or is the scales of one that is there."""
    pairs = [(one, other) for pair in SCALES for one, other in (pair, pair[::-1])]
    return any(key.endswith(one) and key.removesuffix(one) + other in keys for one, other in pairs)


def _content(config: PreTrainedConfig) -> Mapping[str, Any]:
    for part in (config, config.get_text_config(decoder=True)):
        stated = getattr(part, "quantization_config", None)
        if stated is not None:
            content: Mapping[str, Any] = stated if isinstance(stated, Mapping) else stated.to_dict()
            return content
    return {}
