"""Cases of rows_from_topk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.parallel import Parallel
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import expect, expect_dtype, expect_identical
from hal.testing.storage import make_generator

from .placement import place_of, untouched

SEQ_LENS = (40, 3, 0, 130)
FAR = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCase:
    """One call of rows_from_topk. columns: the table's width, less than the requests need where ids fall outside it."""

    block_size: int
    width: int
    columns: int
    note: str = ""
    rows_per_page: int | None = None
    parallel: Parallel = field(default_factory=Parallel)
    holes: bool = False
    tokens: int = 24
    is_ordered: bool = False

    @property
    def id(self) -> str:
        """Readable, and unique within a backend's suite."""
        parallel = self.parallel
        rank = f"rank{parallel.dcp_rank}of{parallel.dcp}x{parallel.interleave}" if parallel.dcp > 1 else ""
        stride = f"stride{self.rows_per_page}" if self.rows_per_page else ""
        return describe("rows_from_topk", f"page{self.block_size}", f"width{self.width}", stride, rank, self.note)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of rows_from_topk that the declaration calls for; DCP only where it is declared."""
    for block_size in sizes.block_sizes:
        for width in sizes.topk_widths:
            for spec in _specs(block_size, width, capabilities):
                yield Case(call="rows_from_topk", id=spec.id, check=partial(check_rows, spec))


def _specs(block_size: int, width: int, capabilities: Capabilities) -> Iterator[RowCase]:
    enough = -(-max(SEQ_LENS) // block_size) + 2
    usual = RowCase(block_size=block_size, width=width, columns=enough, is_ordered=capabilities.deterministic)
    yield usual
    yield replace(usual, note="negative_blocks", holes=True)
    yield replace(usual, note="narrow_table", columns=1)
    yield replace(usual, note="no_table", columns=0)
    yield replace(usual, rows_per_page=block_size + 5)
    yield replace(usual, note="negative_blocks", rows_per_page=2 * block_size, holes=True)
    yield replace(usual, note="zero_tokens", tokens=0)
    if not capabilities.dcp:
        return
    for ranks, interleave in ((2, 1), (3, block_size), (4, max(1, block_size // 4))):
        for rank in range(ranks):
            parallel = Parallel(dcp=ranks, dcp_rank=rank, interleave=interleave)
            yield replace(usual, parallel=parallel, holes=rank == 1)


def check_rows(case: RowCase, backend: Backend) -> None:
    """Raise ConformanceError unless this holds: valid rows to the left, -1 after them, and their count.

    A backend that declares deterministic results keeps the order of the ids.
    """
    generator, where = make_generator(case.id), place_of(backend)
    topk, req_id = _random_ids(case, generator)
    table = torch.randperm(4 * case.columns + 8, generator=generator)[: 4 * case.columns].reshape(4, case.columns)
    if case.holes:
        table[torch.rand(table.shape, generator=generator) < 0.3] = -1
    table = table.to(torch.int32)
    seq_lens = torch.tensor(SEQ_LENS, dtype=torch.int32)
    given = (topk, req_id, table, seq_lens)
    expected = reference.rows_from_topk(
        *given, block_size=case.block_size, rows_per_page=case.rows_per_page, parallel=case.parallel
    )
    moved = [tensor.to(where) for tensor in given]
    with untouched(topk=moved[0], req_id=moved[1], block_table=moved[2], seq_lens=moved[3]):
        rows, valid = backend.rows_from_topk(
            *moved, block_size=case.block_size, rows_per_page=case.rows_per_page, parallel=case.parallel
        )
    expect_dtype(rows, torch.int32, "rows")
    expect_identical(valid, expected[1], "valid")
    expect(rows.shape == expected[0].shape, f"rows have shape {list(rows.shape)}; expected {list(expected[0].shape)}")
    if case.is_ordered:
        expect_identical(rows, expected[0], "rows")
    for token, (found, wanted, count) in enumerate(zip(rows.tolist(), expected[0].tolist(), valid.tolist(), strict=True)):
        expect(
            sorted(found[:count]) == sorted(wanted[:count]) and set(found[count:]) <= {-1},
            f"token {token} has rows {found}; expected the set {sorted(wanted[:count])}, then -1",
        )


def _random_ids(case: RowCase, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids in, at and far past a request's length, with -1 and other negatives in between; the first token has none."""
    lengths = torch.tensor(SEQ_LENS)
    req_id = torch.randint(len(SEQ_LENS), (case.tokens,), generator=generator)
    shape = (case.tokens, case.width)
    topk = (torch.rand(shape, generator=generator) * (lengths[req_id][:, None] + 6)).long()
    odd = torch.rand(shape, generator=generator)
    topk[odd < 0.2] = -1
    topk[odd < 0.1] = FAR
    topk[odd < 0.05] = -FAR
    topk[:1] = -1
    return topk.to(torch.int32), req_id.to(torch.int32)
