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
    """The new tokens of a step in the engine's order, and the pages that they are written to.

    positions, req_id, places: token by token; places is the position among those that the token's rank stores. Tokens of one
    request that share a page are a run: columns and pages have one entry for each, pages table by table, and firsts and counts
    say which tokens they are; those two are None where every token is a run of its own. Where the engine brings slots of its
    own nobody asks for pages: columns is empty and pages is ().
    """

    positions: Ints
    req_id: Ints
    places: Ints
    columns: Ints
    pages: tuple[Ints, ...]
    firsts: Ints | None = None
    counts: Ints | None = None

    def spread(self, of_runs: Ints) -> Ints:
        """What is said of the runs, said of each of their tokens."""
        return of_runs if self.counts is None else np.repeat(of_runs, self.counts)


def place_tokens(step: HostStep, block_size: int, parallel: Parallel) -> Placement:
    """Where the new tokens go; the tables have a column for each."""
    counting = np.arange(step.num_reqs, dtype=np.int32)
    if step.is_single:
        positions, req_id = step.seq_lens - 1, counting
    else:
        req_id = np.repeat(counting, step.query_lens)
        # A token's position is its index in the step moved by where its request's new tokens begin.
        positions = np.repeat(step.seq_lens - step.starts[1:], step.query_lens)
        positions += np.arange(step.num_tokens, dtype=np.int32)
    if step.slots is not None:
        return Placement(positions, req_id, positions, positions[:0], ())
    places = positions if parallel.dcp == 1 else local_position(positions, parallel)
    columns = places // block_size
    if step.is_single:
        pages = tuple([_look_up_in_order(table, columns) for table in step.block_tables])
        return Placement(positions, req_id, places, columns, pages)
    firsts, counts = _find_runs(step, columns)
    rows, columns = req_id.take(firsts), columns.take(firsts)
    pages = tuple([table[rows, columns] for table in step.block_tables])
    return Placement(positions, req_id, places, columns, pages, firsts, counts)


def _find_runs(step: HostStep, columns: Ints) -> tuple[Ints, Ints]:
    """The first token of each run of a request's tokens in one column, and how many each run has."""
    num_tokens = step.num_tokens
    # One more than tokens: requests without one may stand behind the last, and there the last run ends.
    begins = np.empty(num_tokens + 1, np.bool_)
    np.not_equal(columns[1:], columns[:-1], out=begins[1:-1])
    begins[step.starts] = True
    bounds = np.flatnonzero(begins)
    return bounds[:-1], bounds[1:] - bounds[:-1]


def _look_up_in_order(table: Ints, columns: Ints) -> Ints:
    """The page in a column of each row; one index into a table that lies end to end takes half the time of two."""
    requests, width = table.shape
    if not width or not table.flags.c_contiguous:
        return table[np.arange(requests), columns]
    return table.ravel().take(np.arange(0, table.size, width) + columns)
