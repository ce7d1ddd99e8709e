"""Batches: the lengths of a step's requests, in every shape an engine can hand over."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCase:
    """Query and sequence lengths of a step's requests, new tokens included in seq_lens.

    padded_tokens: query rows past the last request's. slack: how far the host's maxima are above the true ones.
    """

    id: str
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    padded_tokens: int = 0
    slack: int = 0

    @property
    def num_tokens(self) -> int:
        """Query rows, padding included."""
        return sum(self.query_lens) + self.padded_tokens

    @property
    def max_query_len(self) -> int:
        """The host's bound on query lengths."""
        return max(self.query_lens, default=0) + self.slack

    @property
    def max_seq_len(self) -> int:
        """The host's bound on sequence lengths."""
        return max(self.seq_lens, default=0) + self.slack

    @property
    def num_decodes(self) -> int:
        """How many requests at the front have a single query."""
        lengths = (*self.query_lens, 0)
        return next(index for index, length in enumerate(lengths) if length != 1)

    @property
    def query_start_loc(self) -> torch.Tensor:
        """int32 [requests + 1]."""
        return start_loc(self.query_lens)

    @property
    def positions(self) -> list[tuple[int, int]]:
        """(request, position) of every query; a position below 0 sees no key."""
        return [
            (request, seq_len - query_len + index)
            for request, (query_len, seq_len) in enumerate(zip(self.query_lens, self.seq_lens, strict=True))
            for index in range(query_len)
        ]


def start_loc(lengths: tuple[int, ...]) -> torch.Tensor:
    """int32 [len(lengths) + 1]: where each run starts, and where the last one ends."""
    return torch.tensor([sum(lengths[:index]) for index in range(len(lengths) + 1)], dtype=torch.int32)


MIXED = BatchCase(id="mixed", query_lens=(4, 1, 9, 1), seq_lens=(4, 20, 9, 33))
DECODE = BatchCase(id="decode", query_lens=(1, 1, 1), seq_lens=(5, 34, 1))
MORE_QUERIES_THAN_KEYS = BatchCase(id="more_queries_than_keys", query_lens=(3, 2), seq_lens=(2, 7))
BATCHES = (
    MIXED,
    DECODE,
    BatchCase(id="decode_first", query_lens=(1, 1, 5), seq_lens=(18, 3, 21)),
    BatchCase(id="ragged_prefill", query_lens=(7, 3, 12), seq_lens=(7, 3, 12)),
    BatchCase(id="chunked_context", query_lens=(3, 5), seq_lens=(19, 37)),
    BatchCase(id="zero_length_requests", query_lens=(0, 3, 0, 1, 0), seq_lens=(0, 3, 6, 8, 0)),
    BatchCase(id="no_keys", query_lens=(1, 2, 1), seq_lens=(0, 4, 0)),
    MORE_QUERIES_THAN_KEYS,
    BatchCase(id="padded", query_lens=(1, 2, 0), seq_lens=(9, 6, 0), padded_tokens=3),
    BatchCase(id="mostly_padding", query_lens=(1,), seq_lens=(5,), padded_tokens=20),
    BatchCase(id="loose_maxima", query_lens=(1, 2), seq_lens=(9, 6), slack=11),
    BatchCase(id="single_token", query_lens=(1,), seq_lens=(1,)),
    BatchCase(id="zero_requests", query_lens=(), seq_lens=()),
    BatchCase(id="zero_tokens", query_lens=(0,), seq_lens=(0,)),
)


def page_boundaries(block_size: int) -> BatchCase:
    """Lengths at, just before and just after the end of a page."""
    lengths = tuple(max(1, length) for length in (block_size - 1, block_size, block_size + 1, 2 * block_size))
    return BatchCase(id="page_boundaries", query_lens=(1, 1, 2, 1), seq_lens=lengths)


def batches(block_size: int) -> tuple[BatchCase, ...]:
    """Every batch for a page size, the one at its page boundaries last."""
    return (*BATCHES, page_boundaries(block_size))
