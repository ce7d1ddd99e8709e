"""FlashAttention 2, 3 and 4: sparse MLA and paged attention."""

from __future__ import annotations

from hal.common.backend import Backend
from hal.common.software import Library


class FlashAttention(Backend):
    """FlashAttention 2, 3 and 4: sparse MLA and paged attention. Its calls are not written yet."""

    name = "cuda:flash_attention"
    platform = "cuda"
    libraries = (
        Library(name="flash_attn_3", distributions=("flash_attn_3", "flash-attn-3")),
        Library(name="flash_attn_4", distributions=("flash-attn-4",)),
        Library(name="flash_attn", distributions=("flash-attn",)),
    )
