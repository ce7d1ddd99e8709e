"""Which layers use multi-head latent attention, and its widths: by structure, never by name."""

from __future__ import annotations

from .errors import ConfigError
from .fields import Fields
from .shape import MLAShape
from .values import as_width


def read_mla(fields: Fields) -> MLAShape | None:
    """The latent widths, or None where the model has no compressed KV vector.

    MLA is: `use_mla` not false, a KV rank, and query/key widths that add up to something. A rope width of 0 is valid.
    ConfigError: a rank without widths, or an odd rope width.
    """
    if fields.flag("use_mla") is False:
        return None
    kv_lora_rank = fields.count("kv_lora_rank")
    if kv_lora_rank is None:
        return None
    nope = fields.first("qk_nope_head_dim", as_width) or 0
    rope = fields.first("qk_rope_head_dim", as_width) or 0
    if nope + rope == 0:
        raise ConfigError(
            f"kv_lora_rank is {kv_lora_rank} but qk_nope_head_dim and qk_rope_head_dim are both unset; MLA needs their sum to be positive, or use_mla false"
        )
    if rope % 2:
        raise ConfigError(f"qk_rope_head_dim is {rope}, expected an even number: rotary pairs cannot be formed")
    return MLAShape(
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=_value_width(fields, nope + rope),
        q_lora_rank=fields.count("q_lora_rank"),
    )


def _value_width(fields: Fields, qk_head_dim: int) -> int:
    declared = fields.count("v_head_dim")
    if declared is None:
        fields.warn(f"v_head_dim is unset in an MLA config; the query/key width {qk_head_dim} is used")
    return declared or qk_head_dim
