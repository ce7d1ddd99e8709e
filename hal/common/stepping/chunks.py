"""How a step's work is cut: context that is gathered piece by piece, queries that are scored together."""

from __future__ import annotations

from collections.abc import Sequence

from hal.common.contract.call_values import IndexerChunk
from hal.common.contract.errors import InputError
from hal.common.contract.step import ContextPiece, Scoring


def plan_context(context_lens: Sequence[int], max_rows: int, alignment: int) -> tuple[tuple[ContextPiece, ...], ...]:
    """Chunks of at most max_rows context tokens, each over a run of requests; zero-length contexts are left out.

    Only a chunk's first piece may continue an earlier one, and pieces are cut on multiples of alignment (the page size:
    some kernels gather whole pages). ValueError where not even one aligned run fits.
    """
    if max_rows < alignment:
        raise InputError(f"a context chunk of {max_rows} rows cannot hold one page of {alignment}; raise the limit")
    chunks: list[tuple[ContextPiece, ...]] = []
    current: list[ContextPiece] = []
    room = max_rows
    for request, length in enumerate(context_lens):
        start = 0
        while start < length:
            take = min(length - start, room)
            if take < length - start:
                take -= take % alignment
            if take:
                current.append(ContextPiece(request=request, start=start, stop=start + take))
                start, room = start + take, room - take
            if start < length:
                chunks.append(tuple(current))
                current, room = [], max_rows
    if current:
        chunks.append(tuple(current))
    return tuple(chunk for chunk in chunks if chunk)


def plan_scores(
    query_lens: Sequence[int], seq_lens: Sequence[int], topk: int, max_elements: int, tokens_per_key: int = 1
) -> tuple[IndexerChunk, ...]:
    """Runs of query tokens to score together so that a score matrix has at most max_elements entries.

    Tokens that see no more than topk keys select them all and are in no chunk. One token alone is scored whatever it takes.
    """
    chunks: list[IndexerChunk] = []
    token = 0
    # The first position that sees more than topk keys: a key is seen from its last token on.
    choosing = (topk + 1) * tokens_per_key - 1
    for request, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
        first = token + min(query_len, max(0, choosing - (seq_len - query_len)))
        token += query_len
        keys = seq_len // tokens_per_key
        rows = max(1, max_elements // max(1, keys))
        for start in range(first, token, rows):
            stop = min(start + rows, token)
            last = chunks[-1] if chunks else None
            if last is not None and last.token_stop == start and _fits(last, stop, keys, max_elements):
                chunks[-1] = _chunk(last.token_start, stop, last.request_start, request, max(last.max_seq_len, keys))
            else:
                chunks.append(_chunk(start, stop, request, request, keys))
    return tuple(chunks)


def spread_scores(
    num_reqs: int, num_tokens: int, max_seq_len: int, scoring: Scoring, max_elements: int
) -> tuple[IndexerChunk, ...]:
    """The same where only an upper bound of every length is known: runs of as many tokens as fit, over all requests."""
    keys = max_seq_len // scoring.tokens_per_key
    if keys <= scoring.topk:
        return ()
    rows = max(1, max_elements // keys)
    return tuple(_chunk(start, min(start + rows, num_tokens), 0, num_reqs - 1, keys) for start in range(0, num_tokens, rows))


def _fits(chunk: IndexerChunk, stop: int, keys: int, max_elements: int) -> bool:
    return (stop - chunk.token_start) * max(chunk.max_seq_len, keys) <= max_elements


def _chunk(start: int, stop: int, first_request: int, last_request: int, max_seq_len: int) -> IndexerChunk:
    return IndexerChunk(
        token_start=start,
        token_stop=stop,
        request_start=first_request,
        request_stop=last_request + 1,
        max_seq_len=max_seq_len,
    )
