"""What else enters the scores: sinks, position biases, the soft cap, and whether later tokens are hidden."""

from __future__ import annotations

from .fields import Fields
from .kinds import SLIDING
from .layer_view import LayerView
from .source import MISSING


def has_sink(layer: LayerView) -> bool:
    """Whether the layer adds a learned logit per head to the softmax denominator; stated, or known of the type's modules."""
    fields = layer.fields
    specific = "add_swa_attention_sink_bias" if layer.kind == SLIDING else "add_full_attention_sink_bias"
    stated = [flag for name in (specific, "learnable_sink", "attention_sink") if (flag := fields.flag(name)) is not None]
    if stated:
        return any(stated)
    kinds = fields.known.facts.get("sink")
    return isinstance(kinds, list) and (layer.kind in kinds or "" in kinds)


def read_position_bias(fields: Fields) -> str | None:
    """ "alibi" or "relative" where positions enter as a bias on the scores, else None."""
    group = fields.nested("attn_config")
    in_group = group is not None and group.read("alibi") is True
    if in_group or fields.flag("alibi") or fields.flag("use_alibi") or fields.raw("position_embedding_type") == "alibi":
        return "alibi"
    if fields.raw("relative_attention_num_buckets") not in (MISSING, None):
        return "relative"
    known = fields.known.facts.get("position_bias")
    return str(known) if known else None


def is_causal(fields: Fields) -> bool:
    """Whether a token sees only itself and earlier ones.

    A class that has an `is_decoder` switch is an encoder unless it is set, or unless its modules are causal whatever it says;
    older files of other types carry the field too.
    """
    if fields.raw("use_bidirectional_attention") in (True, "all") or fields.flag("is_causal") is False:
        return False
    if fields.encoder_decoder or fields.flag("is_decoder") is True:
        return True
    known = fields.known.facts.get("causal")
    return known if isinstance(known, bool) else "is_decoder" not in fields.known.fields
