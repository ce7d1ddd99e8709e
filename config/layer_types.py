"""Each layer's type, from whichever of the many spellings a config uses.

The first rule that applies decides: a list of types, compress ratios, pattern strings, 0/1 lists, index lists, periods; then
the pattern that transformers fills in for the type; then the window rule (layer i slides when i >= max_window_layers).
"""

from __future__ import annotations

from . import layer_lists, layer_periods
from .fields import Fields
from .kinds import CROSS, FULL, LINEAR, SLIDING
from .layer_lists import Rule, index_set


def read_layer_types(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """The canonical type (see kinds) of each layer. ConfigError: a list whose length is not the number of layers."""
    types = next(types for rule in RULES if (types := rule(fields, num_layers)) is not None)
    cross = index_set(fields, "cross_attention_layers")
    return tuple(CROSS if layer in cross else kind for layer, kind in enumerate(types)) if cross else types


def stated_layers(fields: Fields, stated: bool = False) -> int | None:
    """How many layers the lists of layer types describe, for configs that give no count; stated: the config's own lists only."""
    for field in ("hybrid_override_pattern", "layer_types", "block_configs"):
        value = fields.raw(field)
        if isinstance(value, (str, list, tuple)) and value and (fields.states(field) or not stated):
            return len([item for item in value if item != "|"])
    return None


RULES: tuple[Rule, ...] = (
    layer_lists.listed,
    layer_lists.attention_types,
    layer_lists.compressed,
    layer_lists.pattern_string,
    layer_lists.marked("hybrid_layer_pattern", SLIDING, FULL),
    layer_lists.linear_config,
    layer_lists.block_sparse,
    layer_lists.blocks,
    layer_lists.indexed("full_attn_idxs", FULL, LINEAR),
    layer_lists.indexed("attn_layer_indices", FULL, LINEAR),
    layer_lists.indexed("local_layer_ids", SLIDING, FULL),
    layer_lists.marked("attn_type_list", FULL, LINEAR),
    layer_periods.cycled,
    layer_periods.every("full_attention_interval", LINEAR),
    layer_periods.every("layer_group_size", LINEAR),
    layer_periods.sliding_pattern,
    layer_periods.offset_period,
    layer_periods.chunked,
    layer_periods.default_list,
    layer_periods.filled_in,
    layer_periods.recurrent,
    layer_periods.windowed,
)

LAYOUT_FIELDS = frozenset(
    {
        "attention_chunk_size", "attention_types", "attn_layer_indices", "attn_layer_offset", "attn_layer_period",
        "attn_type_list", "block_types", "expert_ffn_hidden_size", "ffn_hidden_size", "first_k_dense_replace",
        "full_attention_interval", "full_attn_idxs", "hybrid_layer_pattern", "hybrid_override_pattern",
        "index_skip_topk_offset", "index_topk_freq", "index_topk_pattern", "indexer_types", "layer_group_size",
        "linear_attn_config", "local_layer_ids", "max_window_layers", "moe_layer_freq", "no_rope_layer_interval",
        "no_rope_layers", "sliding_window_pattern", "use_sliding_window",
    }
)  # fmt: skip
"""Fields that say which layers are of which kind, or serve one way to say it: where another rule decides, they add nothing."""
