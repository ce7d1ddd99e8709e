"""Prompts on their way to text: which tokens are computed, which pages they hold, who runs next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from hal.common.contract.batch import Batch


@dataclass(slots=True, kw_only=True)
class Running:
    """One prompt and what has been generated for it. num_computed counts the tokens whose KV is in the cache."""

    prompt: int
    tokens: list[int]
    prompt_length: int
    max_length: int
    generator: torch.Generator | None
    pages: list[int] = field(default_factory=list)
    block_table: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    num_computed: int = 0

    def hold(self, pages: list[int]) -> None:
        """Take pages, as the ids to give back and as the row of a block table."""
        self.pages = pages
        self.block_table = np.array(pages, np.int32)

    @property
    def is_decoding(self) -> bool:
        """Whether only its last token is left to compute."""
        return len(self.tokens) - self.num_computed == 1

    def pages_needed(self, block_size: int) -> int:
        """Pages that hold it at its longest; the last token is never written."""
        return -(-max(1, self.max_length - 1) // block_size)


@dataclass(frozen=True, slots=True)
class Turn:
    """One step's work: so many tokens of each sequence, decodes first."""

    sequences: tuple[Running, ...]
    counts: tuple[int, ...]

    def batch(self) -> Batch:
        """The step as hal wants it; one table, because a page id means the same page in every group."""
        ends = [sequence.num_computed + count for sequence, count in zip(self.sequences, self.counts, strict=True)]
        return Batch(np.array(self.counts, np.int32), np.array(ends, np.int32), self._block_table())

    def _block_table(self) -> npt.NDArray[np.int32]:
        rows = [sequence.block_table for sequence in self.sequences]
        if len(rows) == 1:
            return rows[0][None]
        table = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for held, row in zip(rows, table, strict=True):
            row[: len(held)] = held
        return table

    def input_ids(self) -> torch.Tensor:
        """The tokens to compute, all sequences end to end, int64 [tokens]."""
        return torch.tensor(
            [
                token
                for sequence, count in zip(self.sequences, self.counts, strict=True)
                for token in sequence.tokens[sequence.num_computed : sequence.num_computed + count]
            ],
            dtype=torch.long,
        )

    def finished_rows(self) -> tuple[list[Running], list[int]]:
        """The sequences that this step computes to their end, and the row of each one's last token."""
        last = [
            (sequence, end - 1)
            for sequence, count, end in zip(self.sequences, self.counts, accumulate(self.counts), strict=True)
            if sequence.num_computed + count == len(sequence.tokens)
        ]
        return [sequence for sequence, _ in last], [row for _, row in last]


def plan_turn(running: Sequence[Running], max_num_batched_tokens: int) -> Turn:
    """The next step: every decode, then as much of the waiting prompts as the token limit leaves room for."""
    ordered = sorted(running, key=lambda sequence: not sequence.is_decoding)
    chosen: list[Running] = []
    counts: list[int] = []
    room = max_num_batched_tokens
    for sequence in ordered:
        count = min(room, len(sequence.tokens) - sequence.num_computed)
        if count:
            chosen.append(sequence)
            counts.append(count)
            room -= count
    return Turn(tuple(chosen), tuple(counts))
