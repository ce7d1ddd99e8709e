"""Fields that say nothing of attention: by their own name, by what their words speak of, or by transformers' classes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

DATA = Path(__file__).with_name("harmless_fields.txt")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HOUSEKEEPING = _words(
    "architectures attn_implementation auto_map bad_words_ids cache_implementation chunk_size_feed_forward ep_size "
    "finetuning_task flash_attn for_llm_compressor fused_dense gradient_checkpointing hidden_act id2label ignore_index "
    "initial_context_length label2id language_model_only lm_head model_type name_or_path num_labels num_reward_heads "
    "output_attentions output_hidden_states prefix pretraining_tp problem_type pruned_heads return_dict rm_head "
    "task_specific_params tensor_parallel_degree tie_encoder_decoder tie_weights_ torchscript transformers_version "
    "use_bfloat16 use_cache use_flash_attn verbose"
)
"""What files carry for the tools around a model: how it was saved, trained, split or run elsewhere."""

BEFORE_OR_AFTER = _words(
    "attention_bias attention_in_bias attention_out_bias attention_output_gate attention_softmax_in_fp32 attn_output_gate "
    "bias decoder_bias embedding_multiplier enable_attention_fp32_softmax enable_bias encoder_layers "
    "final_logit_softcapping hidden_dim indexer_rope_interleave key_bias layer_norm_eps layer_norm_epsilon "
    "linear_conv_kernel_dim linear_head_dim linear_key_head_dim linear_num_heads linear_num_key_heads "
    "linear_num_value_heads linear_value_head_dim llama_4_scaling lm_head_multiplier logit_scale logits_scaling "
    "mla_scale_kv_lora mla_scale_q_lora mla_use_nope n_group no_bias norm_eps norm_topk_prob normalize_qk_projections "
    "num_encoder_layers o_groups o_lora_rank output_gate_type parallel_attn q_lora_rank qk_layer_norms qk_layernorm qk_norm "
    "qk_norm_type qkv_bias query_bias reorder_and_upcast_attn residual_multiplier rms_norm_eps rope_scaling_factor "
    "scale_attention_softmax_in_fp32 scoring_func slow_but_exact topk_group topk_method use_bias use_gqa use_grouped_topk "
    "use_parallel_residual use_qk_norm use_qkv_bias value_bias zero_expert_type"
)
"""What any model may do to queries, keys and values before they reach attention, or to what comes out of it, and how exactly
the scores are added up: biases of the projections, norms, gates, positions, state-space layers, experts."""

IN_ITS_CLASS = _words(
    "adapter_rank alpha_initializer alpha_type alphas_initializer_range altup_num_inputs attention_value_scale attn_scale "
    "attn_temperature_tuning centroid_intermediate_top_k clip_qkv context_length d_rel deepstack_layer_map floor_scale "
    "gating key_multiplier learnable_sink_init log_scaling_alpha log_scaling_n_floor mlp_layer_types model_parallel_size "
    "num_adapter_layers num_centroids num_codebooks num_conv_layers num_hidden_groups num_mem_blocks pad_token_id pre_norm "
    "qk_l2_clip_threshold qk_scale_factor rel_extent rel_l2_clip_threshold relative_attention_max_distance "
    "relative_max_distance resampler_depth resampler_dim_head resampler_ff_mult resampler_heads resampler_num_latents "
    "rotary_value sconv_kernel_size text_config upsample_rates use_attention_gate use_mem_rope use_shared_attention_adapter "
    "vision_config"
)
"""Fields that attention modules of transformers' classes read and that change only what goes in or comes out there: queries
scaled or clipped before the scores are made, values after, relative biases under the kind that is read."""

PARTS = _words(
    "vision image img video audio speech mamba ssm engram ngram projector resolution resolutions tile tiles pinpoints patch "
    "pixel pixels"
)
"""Words of fields that belong to another part of the model, whatever else the name says."""

OUTSIDE = _words(
    "moe expert experts router routed routing route mlp ffn intermediate vocab tokenizer dropout pdrop drop loss aux "
    "quantization quantized dtype fp32 initializer init label labels swiglu summary rope rotary mrope theta normalization "
    "view"
)
"""Words of the feed-forward part, of positions, training and storage; beside words such as "heads" they do not settle it."""

UNSETTLED = _words("attention attn kv layers head heads")
STORED = _words("dropout pdrop drop dtype fp32 initializer init quantization loss")
"""Of OUTSIDE, what says how a thing is stored or trained, and so settles it beside any word."""

TOKENS = ("_token_id", "_token_ids", "_token_index")
"""Endings of fields that name tokens."""

ASIDE = _words(
    "norm layernorm eps epsilon activation act inner embedding embeddings embd embed emb residual resid id ids version class name"
)
"""Words that say as much where no word of ATTENTION stands beside them."""

ATTENTION = _words(
    "attention attn softmax score scores scored logit kv key keys query queries head heads index indexer window windows "
    "windowed chunk chunked chunks sparse sparsity block blocks blocksparse temperature scale scales scaled scaling "
    "multiplier multipliers cap caps capped capping clip clipping loop loops looped recurrent recurrence recursion "
    "recursive recursions repeat repeats repeated share shared sharing cycle cycles step steps ut causal bidirectional mask "
    "masking sink sinks alibi topk candidate candidates budget compress compressed compression ratio latent latents local "
    "global stride dilation dilated hash memory layer layers depth depths iteration iterations iterative pass passes hop "
    "hops segment segments state states cache span landmark landmarks lsh bucket buckets random prior mean tau period "
    "interval frequency freq every skip reuse cross"
)
"""Words of fields that may decide what attention sees, how often it runs or what it keeps."""

ON_BY_DEFAULT = _words("causal mask masking scale scaled scaling softmax")
"""Words of what any attention does, so that a false or a zero changes it."""


@functools.cache
def _known_names() -> frozenset[str]:
    return frozenset(DATA.read_text(encoding="utf-8").split())


def is_harmless(name: str) -> bool:
    """Whether a field is known not to matter to attention in any model."""
    return is_harmless_by_name(name) or name in _known_names()


def is_harmless_by_name(name: str) -> bool:
    """Whether a field's own name says that it does not matter to attention."""
    if name in HOUSEKEEPING or name in BEFORE_OR_AFTER or name.startswith("_"):
        return True
    if name.endswith(TOKENS):
        return True
    words = set(name.lower().split("_"))
    if words & PARTS:
        return True
    if words & OUTSIDE:
        return not words & UNSETTLED or bool(words & STORED)
    return bool(words & ASIDE) and not words & ATTENTION


def may_matter(name: str) -> bool:
    """Whether a word of the name speaks of attention, so that one class's silence about it says nothing of other models."""
    return bool(set(name.lower().split("_")) & ATTENTION)


def is_off(name: str, value: object) -> bool:
    """Whether a value says nothing, or that what the field names is not there."""
    if value is None or (isinstance(value, (str, list, tuple, Mapping)) and not value):
        return True
    return (value is False or value == 0) and not set(name.lower().split("_")) & ON_BY_DEFAULT
