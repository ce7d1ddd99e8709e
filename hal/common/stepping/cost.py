"""The operation counts that decide how MLA is computed for a run of new tokens."""

from __future__ import annotations

from dataclasses import dataclass

from hal.common.contract.step import MLAForm
from hal.config import MLAShape


@dataclass(frozen=True, slots=True, kw_only=True)
class MLACost:
    """Multiply-adds per head of both forms of one request's new tokens."""

    absorbed: int
    decompressed: int

    @property
    def cheaper(self) -> MLAForm:
        """The form with fewer operations; absorbed on a tie, since it gathers less."""
        return "decompressed" if self.decompressed < self.absorbed else "absorbed"


def count_mla(mla: MLAShape, query_len: int, seq_len: int, topk: int | None) -> MLACost:
    """Operations of attending with the last query_len of seq_len tokens; topk: keys an indexer leaves to each of them.

    absorbed: every query goes through w_uk and its result through w_uv, and a pair costs the latent twice and the rotary
    part once. decompressed: every key goes through w_uk and w_uv, and a pair costs the head's own widths; an indexer saves
    nothing there, since what it leaves out is masked and not skipped.
    """
    context = seq_len - query_len
    pairs = query_len * context + query_len * (query_len + 1) // 2
    projection = mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
    latent_pair = mla.latent_dim + mla.kv_lora_rank
    head_pair = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
    seen = pairs if topk is None else count_selected(query_len, seq_len, topk)
    return MLACost(
        absorbed=query_len * projection + seen * latent_pair,
        decompressed=seq_len * projection + pairs * head_pair,
    )


def count_selected(query_len: int, seq_len: int, topk: int) -> int:
    """Query-key pairs that an indexer leaves: min(position + 1, topk) summed over the new tokens."""
    context = seq_len - query_len
    growing = max(0, min(seq_len, topk) - context)
    return growing * context + growing * (growing + 1) // 2 + (query_len - growing) * topk
