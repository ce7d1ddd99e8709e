"""Cases of states that no entry is made of: NaN and infinities there leave the entries what they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.testing import reference
from hal.testing.case import Sizes, describe
from hal.testing.cases import BatchCase
from hal.testing.compare import expect_close
from hal.testing.storage import make_generator

from .compress import WIDTH, CompressCase, CompressStep, compress_on, make_step
from .sight import Check, spoil_elements

# Two groups closed after a context, none closed, a prompt that closes one, and one that reaches back into another page.
BATCH = BatchCase(id="unseen", query_lens=(7, 1, 6, 3), seq_lens=(14, 9, 6, 18))


def checks(capabilities: Capabilities, sizes: Sizes) -> Iterator[tuple[str, str, Check]]:
    """Entries of one group of tokens and of two, all of a step's entries and each request's first alone."""
    del capabilities
    for groups in (1, 2):
        for is_index in (False, True):
            case = CompressCase(batch=BATCH, dtype=sizes.dtype, groups=groups, is_index=is_index)
            for observes_first in (False, True):
                kind = ("overlapping" if groups == 2 else "apart", "index_keys" if is_index else "entries")
                words = describe(*kind, "later_states" if observes_first else "other_states")
                yield "compress_states", words, partial(_check, case, observes_first)


def _check(case: CompressCase, observes_first: bool, name: str, backend: Backend) -> None:
    generator = make_generator(name)
    step = make_step(case, generator)
    observed = _closing(case, step, observes_first)
    spoilt = _spoil(case, step, observed, generator)
    _, entries = compress_on(backend, case, spoilt)
    reference.compress_states(step.compressor, step.states, step.entries, step.batch, ratio=case.ratio)
    page, offset = (step.batch.entry_slots[observed] // entries.block_size, step.batch.entry_slots[observed] % entries.block_size)
    found, wanted = (cache.storage.cpu()[page, offset] for cache in (entries, step.entries))
    expect_close(found, wanted, case.dtype, "entries that are made of no NaN and no infinity")


def _closing(case: CompressCase, step: CompressStep, observes_first: bool) -> list[int]:
    """The step's tokens that close an entry; observes_first: each request's first of them."""
    closing = [token for token, slot in enumerate(step.batch.entry_slots.tolist()) if slot >= 0]
    requests = [case.batch.positions[token][0] for token in closing]
    firsts = [token for number, token in enumerate(closing) if requests[number] not in requests[:number]]
    return firsts if observes_first else closing


def _spoil(case: CompressCase, step: CompressStep, observed: list[int], generator: torch.Generator) -> CompressStep:
    """The step with NaN and infinities in everything that no observed entry is made of, lane by lane."""
    made, wide = step.compressor, case.groups * WIDTH
    new = torch.zeros(made.kv.shape, dtype=torch.bool)
    old = torch.zeros(step.states.storage.shape, dtype=torch.bool)
    for token in observed:
        request, position = case.batch.positions[token]
        first = case.batch.seq_lens[request] - case.batch.query_lens[request]
        for age in range(min(case.groups * case.ratio, position + 1)):
            newer = case.groups == 2 and age < case.ratio
            lanes, source = slice(WIDTH, wide) if newer else slice(0, WIDTH), position - age
            if source >= first:
                new[token - age, lanes] = True
                continue
            page, offset = step.tables[request][source // case.block_size], source % case.block_size % case.rows_kept
            old.view(*old.shape[:2], 2, wide)[page, offset, :, lanes] = True
    turned = torch.zeros(len(made.kv), dtype=torch.bool)
    turned[observed] = True
    spoilt = replace(
        made,
        kv=spoil_elements(made.kv, new, generator),
        score=spoil_elements(made.score, new, generator),
        cos=None if made.cos is None else spoil_elements(made.cos, turned[:, None], generator),
        sin=None if made.sin is None else spoil_elements(made.sin, turned[:, None], generator),
    )
    states = replace(step.states, storage=spoil_elements(step.states.storage, old, generator))
    return replace(step, compressor=spoilt, states=states)
