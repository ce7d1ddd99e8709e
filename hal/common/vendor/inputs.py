"""What every library's attention says in its own words, as one value that the spellings are built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hal.common.contract.masking import CAUSAL, Masking

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """Queries, keys and values of a call, and where the requests' lie.

    q [tokens, heads, head_dim]; q_latent, for MLA, [tokens, heads, lora]. Paged: k, v [pages, page, kv_heads, width] and
    block_table int32 [requests, pages], of ids that exist. Else: k, v [keys, kv_heads, width] and key_start_loc int32
    [requests + 1]. key_lens: int32 [requests]. out: where the library can write, None where it makes its own.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    query_start_loc: torch.Tensor
    key_lens: torch.Tensor
    max_query_len: int
    max_seq_len: int
    softmax_scale: float
    masking: Masking = CAUSAL
    need_lse: bool = False
    q_latent: torch.Tensor | None = None
    block_table: torch.Tensor | None = None
    key_start_loc: torch.Tensor | None = None
    out: torch.Tensor | None = None

    @property
    def left(self) -> int | None:
        """Keys seen to the left of the query's own, which is how every library counts a window; None for all."""
        return None if self.masking.window is None else self.masking.window - 1
