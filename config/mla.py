"""Which layers use multi-head latent attention, and its widths: by structure, never by name."""

from __future__ import annotations

from .errors import ConfigError
from .layer_periods import stated_period
from .layer_shape import MLAShape
from .layer_view import LayerView


def read_mla(layer: LayerView) -> MLAShape | None:
    """The latent widths, or None where the layer has no compressed KV vector.

    MLA is: `use_mla` not false, a KV rank, and query/key widths that add up to something. A rope width of 0 is valid.
    ConfigError: a rank without widths, or an odd rope width.
    """
    kv_lora_rank = None if layer.fields.flag("use_mla") is False else layer.count("kv_lora_rank")
    if kv_lora_rank is None:
        return None
    nope = layer.width("qk_nope_head_dim") or 0
    rope = _rope_width(layer, nope)
    if _is_without_rope(layer):
        nope, rope = nope + rope, 0
    if nope + rope == 0:
        raise ConfigError(
            f"kv_lora_rank is {kv_lora_rank} but qk_nope_head_dim and qk_rope_head_dim are both unset; "
            "MLA needs their sum to be positive, or use_mla false"
        )
    if rope % 2:
        raise ConfigError(f"qk_rope_head_dim is {rope}, expected an even number: rotary pairs cannot be formed")
    return MLAShape(
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=_value_width(layer, nope + rope),
        q_lora_rank=layer.count("q_lora_rank"),
    )


def _rope_width(layer: LayerView, nope: int) -> int:
    """The rope width; where a class has written another field's value over it, what the total and the nope width leave.

    Some transformers classes alias head_dim to qk_rope_head_dim, so a file with both ends up with a wrong rope width.
    """
    rope = layer.width("qk_rope_head_dim") or 0
    total = layer.count("qk_head_dim")
    if total is None or total == nope + rope or total <= nope or rope != layer.count("head_dim"):
        return rope
    layer.fields.warn(
        f"qk_head_dim {total} is not qk_nope_head_dim {nope} + qk_rope_head_dim {rope}, which repeats head_dim; "
        f"{total - nope} is used for the rope width"
    )
    return total - nope


def _is_without_rope(layer: LayerView) -> bool:
    """Whether `no_rope_layers` marks the layer with 0: its rotary lanes are then ordinary ones, up-projected from the latent."""
    marks = layer.fields.sequence("no_rope_layers")
    pattern = layer.fields.known.patterns.get("no_rope_layers")
    if marks is None:
        marks = stated_period(layer.fields, "no_rope_layers", layer.num_layers)
    if marks is None and pattern is not None:
        marks = pattern.expand(layer.num_layers)
    layer.varies = layer.varies or marks is not None
    return marks is not None and layer.layer_id < len(marks) and not marks[layer.layer_id]


def _value_width(layer: LayerView, qk_head_dim: int) -> int:
    declared = layer.count("v_head_dim")
    if declared is None:
        layer.fields.warn(f"v_head_dim is unset in an MLA config; the query/key width {qk_head_dim} is used")
    return declared or qk_head_dim
