"""Tables that miss a page where queries see keys, in direct calls of the adapters: refused, or no key for that request."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hal.common.contract.call_values import KVCache, PagedBatch
from hal.common.contract.errors import BackendError
from hal.common.contract.layouts import attention_layout
from hal.common.contract.masking import Masking
from hal.common.vendor import pages
from hal.testing.cases import BatchCase
from hal.testing.storage import build_cache, make_generator, paged_batch, random_tensor

from .helpers.cells import CELLS, Cell, Held

# 256 is the one page size that every kernel here reads.
PAGE, DTYPE, SCALE = 256, "bfloat16", 0.1
BATCHES = {
    "decodes": BatchCase(id="decodes", query_lens=(1, 1, 1), seq_lens=(300, 700, 40)),
    "prefills": BatchCase(id="prefills", query_lens=(3, 5, 40), seq_lens=(300, 700, 40)),
}
NOTHING = {"minus_one": -1, "lowest": -(2**31), "one_too_many": None, "highest": 2**31 - 1}
PAGED = [
    pytest.param(cell, held, id=f"{cell.id}{held.note and '-'}{held.note}")
    for cell in CELLS
    for held in cell.held
    if held.call == "paged_attention" and "latent" not in held.note
]
STEPS = [
    pytest.param(*param.values, name, id=f"{param.id}-{name}")
    for param in PAGED
    for name in BATCHES
    if name == "decodes" or param.values[1].only is None
]


def make_inputs(name: str) -> tuple[KVCache, PagedBatch, torch.Tensor]:
    """A cache whose page 0 is nobody's and holds what would change any answer, a batch over it, and queries."""
    generator, case = make_generator(name), BATCHES[name]
    cache, table = build_cache(attention_layout(2, 64, 64, DTYPE), [PAGE, *case.seq_lens], PAGE, generator)
    # The page that the first of these, which is left out, has in place of page 0.
    table = torch.where(table == 0, table[0, 0], table)[1:]
    cache.storage[0] = 1e4
    return cache, paged_batch(case, table), random_tensor(generator, case.num_tokens, 4, 64, dtype=DTYPE)


def attend(cell: Cell, held: Held, q: torch.Tensor, cache: KVCache, batch: PagedBatch, **mask: int) -> Any:
    with cell.installed():
        adapter = cell.adapter(held)(cell.device)
        need_lse = bool(held.changes["lse"])
        return adapter.paged_attention(q, cache, batch, softmax_scale=SCALE, need_lse=need_lse, masking=Masking(**mask))


def lose(batch: PagedBatch, request: int, column: int, block: int) -> PagedBatch:
    table = batch.block_table.clone()
    table[request, column] = block
    return PagedBatch(batch.query_start_loc, batch.seq_lens, table, batch.max_query_len, batch.max_seq_len)


@pytest.mark.parametrize("block", NOTHING)
@pytest.mark.parametrize(("cell", "held", "name"), STEPS)
def test_a_call_that_would_look_up_a_missing_page_is_refused(cell: Cell, held: Held, name: str, block: str) -> None:
    cache, batch, q = make_inputs(name)
    stranger = cache.num_pages if NOTHING[block] is None else NOTHING[block]
    with pytest.raises(BackendError, match=r"request 1 has none of the cache's .* pages in column 1"):
        attend(cell, held, q, cache, lose(batch, 1, 1, stranger))


@pytest.mark.parametrize(("cell", "held"), PAGED)
def test_a_call_whose_table_ends_before_a_request_does_is_refused(cell: Cell, held: Held) -> None:
    cache, batch, q = make_inputs("decodes")
    narrow = PagedBatch(batch.query_start_loc, batch.seq_lens, batch.block_table[:, :2], 1, 700)
    with pytest.raises(BackendError, match=r"request 1 has none of the cache's .* pages in column 2"):
        attend(cell, held, q, cache, narrow)


@pytest.mark.parametrize(("cell", "held", "name"), STEPS)
def test_where_nobody_can_look_the_request_sees_no_key(
    cell: Cell, held: Held, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an accelerator, whose values a call does not wait for."""
    cache, batch, q = make_inputs(name)
    whole, whole_lse = attend(cell, held, q, cache, batch)
    monkeypatch.setattr(pages, "_can_see", lambda _: False)
    out, lse = attend(cell, held, q, cache, lose(batch, 1, 1, -1))
    starts = batch.query_start_loc.tolist()
    hidden = torch.zeros(q.shape[0], dtype=torch.bool)
    hidden[starts[1] : starts[2]] = True
    assert not out[hidden].any()
    assert torch.equal(out[~hidden], whole[~hidden])
    if lse is not None:
        assert (lse[hidden] == -torch.inf).all()
        assert torch.equal(lse[~hidden], whole_lse[~hidden])


@pytest.mark.parametrize(("cell", "held"), PAGED)
def test_pages_behind_every_window_and_of_nobody_are_not_missed(cell: Cell, held: Held) -> None:
    cache, batch, q = make_inputs("prefills" if held.only is None else "decodes")
    # The last column of the first request lies past its end.
    others = lose(batch, 0, 2, -1)
    mask = {}
    if held.changes.get("window", True):
        # The first new token of the second request stands at 695 and sees 128 keys.
        others, mask = lose(others, 1, 1, -1), {"window": 128}
    whole, _ = attend(cell, held, q, cache, batch, **mask)
    out, _ = attend(cell, held, q, cache, others, **mask)
    assert torch.equal(out, whole)
