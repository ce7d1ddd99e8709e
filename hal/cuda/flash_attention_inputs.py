"""The contract's tensors as FlashAttention's inputs: pages, rows as pages of one token, rows to gather."""

from __future__ import annotations

import torch

from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.masking import Masking
from hal.common.vendor import AttentionInputs, KernelFacts
from hal.common.vendor.tensors import pad_to, readable_table, round_up, split_latent, split_pages, split_query, writable

from .flash_attention_calls import Gather

GATHER_MULTIPLE = 128
"""Gathering kernels take the index list in whole tiles."""
MLA_HEAD_DIM = 64
"""The width of the plain head beside a latent one; zeros where a model has no rotary part."""


def page_inputs(
    q: torch.Tensor,
    cache: KVCache,
    batch: PagedBatch,
    softmax_scale: float,
    masking: Masking,
    need_lse: bool,
    out: torch.Tensor | None,
) -> AttentionInputs:
    """A paged batch as it is; a latent cache as keys of its rotary part and values of its latent part."""
    q_latent = None
    if cache.layout.name == "latent":
        lora, rope = cache.layout.widths
        q, q_latent = split_query(q, lora, rope or MLA_HEAD_DIM)
        k, v = split_latent(cache, cache.storage[:, : cache.block_size].unsqueeze(2), rope or MLA_HEAD_DIM)
    else:
        k, v = split_pages(cache)
    return AttentionInputs(
        q=q,
        k=k,
        v=v,
        q_latent=q_latent,
        query_start_loc=batch.query_start_loc,
        key_lens=batch.seq_lens,
        block_table=readable_table(batch, cache.num_pages),
        max_query_len=batch.max_query_len,
        max_seq_len=batch.max_seq_len,
        softmax_scale=softmax_scale,
        masking=masking,
        need_lse=need_lse,
        out=writable(out),
    )


def row_inputs(q: torch.Tensor, segment: Segment, kv_lora_rank: int, softmax_scale: float, need_lse: bool) -> AttentionInputs:
    """Rows as a page table of pages that hold one token: every query is a sequence of its own, as long as its list."""
    rope = q.shape[2] - kv_lora_rank
    q_rope, q_latent = split_query(q, kv_lora_rank, rope or MLA_HEAD_DIM)
    k, v = split_latent(segment.cache, segment.cache.rows[:, None, None, :], rope or MLA_HEAD_DIM)
    return AttentionInputs(
        q=q_rope,
        k=k,
        v=v,
        q_latent=q_latent,
        query_start_loc=_one_query_each(q),
        key_lens=segment.valid,
        block_table=segment.rows,
        max_query_len=1,
        max_seq_len=segment.rows.shape[1],
        softmax_scale=softmax_scale,
        need_lse=need_lse,
    )


def gather_inputs(
    kernel: KernelFacts, q: torch.Tensor, segment: Segment, kv_lora_rank: int, softmax_scale: float, need_lse: bool
) -> tuple[AttentionInputs, Gather]:
    """Rows to gather from the whole cache, of which every query's sequence sees all; heads padded to a compiled count."""
    q_rope, q_latent = split_query(q, kv_lora_rank, MLA_HEAD_DIM)
    heads = kernel.padded_heads(q.shape[1])
    k, v = split_latent(segment.cache, segment.cache.rows[:, None, :], MLA_HEAD_DIM)
    num_rows, tokens = k.shape[0], q.shape[0]
    inputs = AttentionInputs(
        q=pad_to(q_rope, 1, heads),
        k=k,
        v=v,
        q_latent=pad_to(q_latent, 1, heads),
        query_start_loc=_one_query_each(q),
        key_start_loc=segment.valid.new_zeros(tokens + 1),
        key_lens=torch.full_like(segment.valid, num_rows),
        max_query_len=1,
        max_seq_len=num_rows,
        softmax_scale=softmax_scale,
        masking=Masking(causal=False),
        need_lse=need_lse,
    )
    width = round_up(segment.rows.shape[1], GATHER_MULTIPLE)
    return inputs, Gather(rows=pad_to(segment.rows, 1, width, value=-1), valid=segment.valid)


def _one_query_each(q: torch.Tensor) -> torch.Tensor:
    return torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
