"""The parameters counted from a config, against those that transformers' own class makes of it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from hal.config import read_shape
from hal.config.weights import count_parameters

WIDE = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 64}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256}
MLA = {"q_lora_rank": 192, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
CONFIGS = {
    "llama": {"intermediate_size": 1536, "num_key_value_heads": 2},
    "llama-tied": {"model_type": "llama", "intermediate_size": 1536, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"intermediate_size": 1536, "num_key_value_heads": 2, "head_dim": 96},
    "gemma2": {"intermediate_size": 1536, "num_key_value_heads": 2, "head_dim": 96, "hidden_activation": "gelu_pytorch_tanh"},
    "gpt2": {"n_embd": 512, "n_layer": 6, "n_head": 8, "activation_function": "gelu_new"},
    "gpt_neox": {"intermediate_size": 2048, "hidden_act": "gelu"},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "multi_query": False},
    "mixtral": {"intermediate_size": 1024, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_key_value_heads": 2, "num_experts": 16, "decoder_sparse_step": 2, "intermediate_size": 1536, **EXPERTS},
    "deepseek_v3": {"intermediate_size": 1536, "n_routed_experts": 16, "n_shared_experts": 1, "first_k_dense_replace": 2}
    | {"num_key_value_heads": 8, "n_group": 2, "topk_group": 1, **EXPERTS, **MLA},
    "gpt_oss": {
        "intermediate_size": 512,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}
MOST_OFF = 0.015


@pytest.mark.parametrize("name", CONFIGS)
def test_counted_parameters_are_those_of_the_class(name: str, tmp_path: Path) -> None:
    config = {"model_type": name, **WIDE, **CONFIGS[name]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    counted = count_parameters(path, read_shape(path))
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        module = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]].from_dict(dict(config)))
    real = sum(parameter.numel() for parameter in module.parameters())
    assert abs(counted.total / real - 1) < MOST_OFF


def test_a_quantisation_makes_all_but_embeddings_smaller(tmp_path: Path) -> None:
    config = {"model_type": "llama", **WIDE, **CONFIGS["llama"]}
    plain = count_parameters(config, read_shape(config))
    quantised = {**config, "quantization_config": {"quant_method": "fp8"}}
    counted = count_parameters(quantised, read_shape(quantised))
    assert plain.bytes_on_rank("bfloat16") == 2 * plain.total
    assert counted.bytes_on_rank("bfloat16") == plain.total + plain.embeddings
    assert counted.bytes_on_rank("bfloat16", tp=2) == counted.bytes_on_rank("bfloat16") // 2


def test_a_stack_that_runs_several_times_has_its_weights_once() -> None:
    once = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    several = {**once, "total_ut_steps": 4}
    assert read_shape(several).num_layers == 12
    assert count_parameters(several, read_shape(several)) == count_parameters(once, read_shape(once))
