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
        "num_decoder_layers",
        "decoder_layers",
    ),
    "num_attention_heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "num_query_heads",
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
        "kv_n_heads",
    ),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "model_dim", "dim"),
    "head_dim": ("head_dim", "kv_channels", "d_kv", "attention_head_dim"),
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
    "sliding_window": ("sliding_window", "sliding_window_size", "window_size", "attention_window_size"),
    "tie_word_embeddings": ("tie_word_embeddings", "tied_embeddings", "share_input_output_layers"),
    "attn_logit_softcapping": ("attn_logit_softcapping", "attn_logit_softcap", "attention_logit_cap"),
    "dtype": ("dtype", "torch_dtype"),
}

DECODER_FIRST = ("num_decoder_layers", "decoder_layers", "decoder_attention_heads")
"""Spellings that come first in an encoder-decoder config, whose plain counts may be the encoder's."""


def spellings(field: str, encoder_decoder: bool = False) -> tuple[str, ...]:
    """All spellings of a field, in the order in which they are tried."""
    known = SPELLINGS.get(field, (field,))
    if not encoder_decoder:
        return known
    return tuple(sorted(known, key=lambda name: name not in DECODER_FIRST))
