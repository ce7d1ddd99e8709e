"""Cutting a phase's requests into runs that take the same form of MLA, and their context into chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from hal.common.contract.step import ContextChunk, MLAForm, MLAKind, MLARun

from .chunks import plan_context
from .cost import count_mla

if TYPE_CHECKING:
    import torch

Place = Callable[[Sequence[int]], "torch.Tensor"]


def choose_form(kind: MLAKind, query_len: int, seq_len: int, can_mask: bool) -> MLAForm:
    """The cheaper form of one request; without a masking kernel, a request that an indexer prunes must stay absorbed."""
    is_pruned = kind.topk is not None and seq_len > kind.topk
    if is_pruned and not can_mask:
        return "absorbed"
    return count_mla(kind.mla, query_len, seq_len, kind.topk).cheaper


def plan_runs(
    kind: MLAKind,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    *,
    can_mask: bool,
    max_rows: int,
    alignment: int,
    place: Place,
) -> tuple[MLARun, ...]:
    """The runs of a phase, in its order. place turns host numbers into an int32 tensor on the device."""
    lengths = zip(query_lens, seq_lens, strict=True)
    forms = [choose_form(kind, *each, can_mask) if kind.is_plain else "absorbed" for each in lengths]
    starts = [0, *accumulate(query_lens)]
    runs = []
    for form, members in groupby(range(len(forms)), key=forms.__getitem__):
        ids = list(members)
        requests = slice(ids[0], ids[-1] + 1)
        queries = query_lens[requests]
        contexts = [seq - query for query, seq in zip(queries, seq_lens[requests], strict=True)]
        chunks: tuple[ContextChunk, ...] = ()
        if form == "decompressed":
            chunks = _plan_chunks(queries, contexts, max_rows, alignment, place)
        runs.append(
            MLARun(
                form=form,
                requests=requests,
                tokens=slice(starts[requests.start], starts[requests.stop]),
                q_start_loc=place([0, *accumulate(queries)]),
                context_lens=place(contexts),
                max_query_len=max(queries),
                max_seq_len=max(seq_lens[requests]),
                context=chunks,
            )
        )
    return tuple(runs)


def _plan_chunks(
    query_lens: Sequence[int], context_lens: Sequence[int], max_rows: int, alignment: int, place: Place
) -> tuple[ContextChunk, ...]:
    starts = [0, *accumulate(query_lens)]
    chunks = []
    # Without a new token nobody sees a context, and its pages may be anything.
    seen_lens = [context * (query > 0) for query, context in zip(query_lens, context_lens, strict=True)]
    for pieces in plan_context(seen_lens, max_rows, alignment):
        first, last = pieces[0].request, pieces[-1].request
        lengths = {piece.request: piece.stop - piece.start for piece in pieces}
        begins = {piece.request: piece.start for piece in pieces}
        members = range(first, last + 1)
        keys = [lengths.get(request, 0) for request in members]
        chunks.append(
            ContextChunk(
                pieces=pieces,
                tokens=slice(starts[first], starts[last + 1]),
                q_start_loc=place([starts[request] - starts[first] for request in range(first, last + 2)]),
                k_start_loc=place([0, *accumulate(keys)]),
                first_key=place([begins.get(request, 0) for request in members]),
                max_query_len=max(query_lens[first : last + 1]),
                num_keys=sum(keys),
            )
        )
    return tuple(chunks)
