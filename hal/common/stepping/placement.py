"""Where a step's new tokens go, looked up once: what is checked of it before anything is written is what is then written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hal.common.contract.parallel import Parallel, local_position

if TYPE_CHECKING:
    from .host_step import HostStep

Ints = npt.NDArray[Any]


class Placement(NamedTuple):
    """The new tokens of a step in the engine's order: position, request, and place and column on the rank that stores it.

    places: the position among those that the rank stores. pages: each token's page, table by table; () where the engine brings
    slots of its own.
    """

    positions: Ints
    req_id: Ints
    places: Ints
    columns: Ints
    pages: tuple[Ints, ...]


def place_tokens(step: HostStep, block_size: int, parallel: Parallel) -> Placement:
    """Where the new tokens go; the tables have a column for each."""
    num_reqs = step.num_reqs
    if step.is_single:
        positions, req_id = step.seq_lens - 1, np.arange(num_reqs, dtype=np.int32)
    else:
        query_lens = step.query_lens
        req_id = np.repeat(np.arange(num_reqs, dtype=np.int32), query_lens)
        # A token's position is its index in the step moved by where its request's new tokens begin.
        positions = np.arange(step.num_tokens, dtype=np.int32) + np.repeat(step.seq_lens - step.starts[1:], query_lens)
    places = positions if parallel.dcp == 1 else local_position(positions, parallel)
    columns = places // block_size
    tables = step.block_tables if step.slots is None else ()
    pages = tuple([_look_up(table, req_id, columns, step.is_single) for table in tables])
    return Placement(positions, req_id, places, columns, pages)


def _look_up(table: Ints, rows: Ints, columns: Ints, is_single: bool) -> Ints:
    """table[rows, columns]; one index into a table that lies end to end takes half the time of two."""
    if not table.flags.c_contiguous:
        return table[rows, columns]
    width = table.shape[1]
    begins = np.arange(0, table.size, width) if is_single and width else rows * np.int64(width)
    return table.ravel().take(begins + columns)


def begin_pages(step: HostStep, placement: Placement) -> Ints:
    """The tokens that are a request's first of the step on their page."""
    columns = placement.columns
    # One more than tokens: requests without one may stand behind the last.
    begins = np.empty(len(columns) + 1, np.bool_)
    np.not_equal(columns[1:], columns[:-1], out=begins[1:-1])
    begins[step.starts[:-1]] = True
    return np.flatnonzero(begins[:-1])
