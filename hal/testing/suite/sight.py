"""What some queries of a batch see, and memory in which everything else is NaN or infinite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import KVCache
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.masking import CAUSAL, Masking
from hal.common.contract.records import write_records
from hal.testing.cases import BatchCase
from hal.testing.reference.softmax import visible_keys
from hal.testing.storage import copy_cache

Check = Callable[[str, Backend], None]
"""A case's check, by the case's name and a backend."""

# A chunk of a prompt after its context, and a decode over several pages.
BATCH = BatchCase(id="unseen", query_lens=(6, 1), seq_lens=(25, 34))
LONE = BatchCase(id="unseen", query_lens=(1, 1), seq_lens=(25, 34))
_VALUES = (torch.nan, torch.inf, -torch.inf)
# The same as bytes: of fp32 scales, of fp8 values and of scales that are powers of two, wherever in a record they lie.
_BYTES = ((255, 255, 255, 255), (0, 0, 128, 127), (0, 0, 128, 255))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A rule, and which queries of each request are observed under it: the last one, or the first half of them.

    ranges: keys are given range by range, by range_of.
    """

    name: str
    batch: BatchCase = BATCH
    observes_first: bool = False
    masking: Masking = CAUSAL
    ranges: bool = False

    def observed(self) -> list[int]:
        """The observed queries' rows."""
        found: list[int] = []
        first = 0
        for length in self.batch.query_lens:
            found += range(first, first + (length + 1) // 2) if self.observes_first else [first + length - 1]
            first += length
        return found

    def seen(self) -> list[set[int]]:
        """Each request's positions that one of its observed queries sees."""
        found: list[set[int]] = [set() for _ in self.batch.seq_lens]
        for token in self.observed():
            request, position = self.batch.positions[token]
            length = self.batch.seq_lens[request]
            keys = visible_keys(position, length, self.masking)
            found[request].update(range(*range_of(position)) if self.ranges else keys)
        return found


LATER = Sight(name="later_tokens", observes_first=True)
UNUSED = Sight(name="unused_rows", batch=LONE)


def sights(capabilities: Capabilities) -> Iterator[Sight]:
    """What a backend takes beyond causality; pages behind a window keep their place in the table and may be another's."""
    if capabilities.window:
        yield Sight(name="behind_window", masking=Masking(window=5))
    if capabilities.chunk:
        yield Sight(name="other_chunk", masking=Masking(chunk=6))
    if capabilities.key_ranges:
        yield Sight(name="outside_range", ranges=True)


def range_of(position: int) -> tuple[int, int]:
    """The keys of a query at a position, where they are given as ranges."""
    return position // 3, position + 1 - position // 4


def rows_of(cache: KVCache, table: torch.Tensor, positions: Sequence[Collection[int]]) -> torch.Tensor:
    """The cache rows int64 of each request's positions."""
    size = cache.block_size
    rows = [
        int(table[request, position // size]) * cache.page_stride + position % size
        for request, some in enumerate(positions)
        for position in sorted(some)
    ]
    return torch.tensor(rows, dtype=torch.int64)


def spoil_rows(cache: KVCache, kept: torch.Tensor, generator: torch.Generator) -> KVCache:
    """A copy of the cache with NaN or infinities in every token's row but some."""
    spoilt, width = copy_cache(cache, "cpu"), cache.layout.width
    every = torch.arange(cache.num_pages)[:, None] * cache.page_stride + torch.arange(cache.block_size)
    rows = every.flatten()[~torch.isin(every.flatten(), kept)]
    kinds = torch.randint(len(_VALUES), rows.shape, generator=generator)
    if cache.layout.is_quantised:
        patterns = torch.tensor(_BYTES, dtype=torch.uint8).repeat(1, -(-width // 4))[:, :width]
        write_records(spoilt, rows, patterns[kinds].view(cache.storage.dtype))
    else:
        values = torch.tensor(_VALUES, dtype=cache.storage.dtype)
        write_records(spoilt, rows, values[kinds][:, None].expand(-1, width).contiguous())
    return spoilt


def spoil_elements(tensor: torch.Tensor, kept: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A copy of the tensor with NaN or infinities in every element but some; kept: bool, like the tensor."""
    values = torch.tensor(_VALUES, dtype=tensor.dtype)
    return torch.where(kept, tensor, values[torch.randint(len(_VALUES), tensor.shape, generator=generator)])


def spoil_tensor(tensor: torch.Tensor, rows: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """A copy of the tensor with NaN or infinities in some rows."""
    spoilt, values = tensor.clone(), torch.tensor(_VALUES, dtype=tensor.dtype)
    chosen = values[torch.randint(len(_VALUES), (len(rows),), generator=generator)]
    spoilt[list(rows)] = chosen.view(-1, *[1] * (tensor.dim() - 1)).expand(-1, *tensor.shape[1:])
    return spoilt
