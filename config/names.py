"""The spellings under which configs carry a field; the first that is set wins.

Sources: the attribute maps of transformers' config classes, and the config.json files of models with their own code
(MPT, DBRX, Falcon, OpenELM, ChatGLM, Phi, Mistral's params.json).
"""

from __future__ import annotations

SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "num_transformer_layers",
        "decoder_layers",
    ),
    "num_attention_heads": (
        "num_attention_heads_per_layer",
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_query_heads",
        "num_heads",
        "decoder_attention_heads",
        "attention_heads",
    ),
    "num_key_value_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "n_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "model_dim", "dim"),
    "head_dim": ("head_dim", "kv_channels", "d_kv", "attention_head_dim", "attention_head_size", "d_head", "dim_head"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "max_context_length",
        "max_target_positions",
        "seq_length",
        "n_ctx",
    ),
    "sliding_window": ("sliding_window", "sliding_window_size", "attention_window_size"),
    "tie_word_embeddings": ("tie_word_embeddings", "tied_embeddings", "share_input_output_layers"),
    "attn_logit_softcapping": ("attn_logit_softcapping", "attn_logit_softcap", "attention_logit_cap"),
    "dtype": ("dtype", "torch_dtype"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"),
    "layer_types": ("layer_types", "layers_block_type", "layer_block_types", "attention_layers"),
    "rope_parameters": ("rope_parameters", "rope_scaling", "yarn"),
}

SINGLE = (
    "add_full_attention_sink_bias",
    "add_swa_attention_sink_bias",
    "alibi",
    "architectures",
    "attention_chunk_size",
    "attention_hidden_size",
    "attention_k_eq_v",
    "attention_multiplier",
    "attention_other_setting",
    "attention_sink",
    "attention_types",
    "attn_config",
    "attn_layer_indices",
    "attn_layer_offset",
    "attn_layer_period",
    "attn_type_list",
    "block_configs",
    "block_types",
    "cla_share_factor",
    "compress_rate_csa",
    "compress_rate_hca",
    "compress_rates",
    "compress_ratios",
    "cross_attention_layers",
    "d_state",
    "expert_ffn_hidden_size",
    "ffn_hidden_size",
    "first_k_dense_replace",
    "full_attention_interval",
    "full_attn_idxs",
    "global_head_dim",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_block_size",
    "index_head_dim",
    "index_kpool",
    "index_local_blocks",
    "index_n_heads",
    "index_skip_topk_offset",
    "index_source_layer_ids",
    "index_topk",
    "index_topk_blocks",
    "index_topk_freq",
    "index_topk_pattern",
    "indexer_budget",
    "indexer_compress_ratio",
    "indexer_head_dim",
    "indexer_kv_heads",
    "indexer_n_heads",
    "indexer_types",
    "is_causal",
    "is_decoder",
    "is_encoder_decoder",
    "kv_lora_rank",
    "kv_sharing_modes",
    "kv_source_layer_ids",
    "kv_source_layers",
    "layer_group_size",
    "learnable_sink",
    "linear_attn_config",
    "local_layer_ids",
    "max_window_layers",
    "model_type",
    "moe_layer_freq",
    "mtp_layer_types",
    "mup_attn_multiplier",
    "mup_use_scaling",
    "mtp",
    "multi_query",
    "new_decoder_architecture",
    "no_rope_layer_interval",
    "no_rope_layers",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "num_sliding_attention_heads",
    "partial_rotary_factor",
    "per_layer_config",
    "position_embedding_type",
    "q_lora_rank",
    "qk_dim_factor",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "query_pre_attn_scalar",
    "relative_attention_num_buckets",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "sliding_window_pattern",
    "sparse_attention_config",
    "ssm_state_size",
    "state_size",
    "swa_head_dim",
    "swa_kv_lora_rank",
    "swa_num_attention_heads",
    "swa_num_key_value_heads",
    "swa_q_lora_rank",
    "swa_qk_nope_head_dim",
    "swa_qk_rope_head_dim",
    "swa_v_head_dim",
    "total_ut_steps",
    "use_alibi",
    "use_bidirectional_attention",
    "use_cla",
    "use_mla",
    "use_sliding_window",
    "v_head_dim",
    "window_size",
)
"""Fields with one spelling."""

GROUP_FIELDS = frozenset(
    {"alibi", "attn_type", "factor", "full_attn_layers", "kv_n_heads", "mscale_all_dim", "rope_type", "softmax_scale", "type"}
    | {"sparse_attention_freq", "sparse_block_size", "sparse_index_dim", "sparse_num_index_heads", "sparse_topk_blocks"}
)
"""Fields that are read inside a group such as attn_config or rope_parameters."""

DECODER_FIRST = {
    "num_hidden_layers": ("num_decoder_layers", "decoder_layers", "decoder_num_hidden_layers"),
    "num_attention_heads": ("decoder_attention_heads", "decoder_num_attention_heads"),
    "num_key_value_heads": ("decoder_num_key_value_heads", "decoder_attention_heads"),
}
"""Spellings that come first in an encoder-decoder config, whose plain counts may be the encoder's."""

FIELDS = frozenset(SINGLE).union(SPELLINGS, *SPELLINGS.values(), *DECODER_FIRST.values())
"""Everything that is read from a config, under every spelling; what an override may name."""


def spellings(field: str, encoder_decoder: bool = False) -> tuple[str, ...]:
    """All spellings of a field, in the order in which they are tried."""
    known = SPELLINGS.get(field, (field,))
    return (*DECODER_FIRST.get(field, ()), *known) if encoder_decoder else known
