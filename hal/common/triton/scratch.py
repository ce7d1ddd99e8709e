"""What the kernels make beside their results: the parts of a call that is too short to fill the device."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

from hal.common.contract.buffer import Buffer
from hal.common.contract.limits import MAX_CONTEXT_ROWS, Limits
from hal.common.contract.request import Request

from .checks import MAX_PARTS
from .choice import BITS
from .fitting import needed_tiles
from .tiles import Machine, Tile, Widths, choose_tile, read_machine

# The kernels that split, with the calls that launch them.
_CALLS = {"attend": ("paged_attention", "varlen_attention"), "latent": ("paged_attention",), "sparse": ("sparse_mla",)}
# Query rows per KV head up to those of a full tile.
_ROWS = tuple(1 << power for power in range(10))


def list_scratch(package: str, request: Request, limits: Limits, calls: Collection[str]) -> tuple[Buffer, ...]:
    """The largest block of parts that a request's calls join, fp32 results and their LSE, and the bits of a choice of keys."""
    return (*_list_parts(package, request, limits, calls), *_list_choice(request, limits, calls))


def _list_choice(request: Request, limits: Limits, calls: Collection[str]) -> tuple[Buffer, ...]:
    """A bit for each new token and each key of a run or of a chunk of its context; none where keys are not chosen."""
    if request.layer.mla is None or request.layer.indexer is None or request.parallel.dcp > 1 or "varlen_attention" not in calls:
        return ()
    tokens = limits.max_num_batched_tokens
    context = min(MAX_CONTEXT_ROWS, limits.max_num_seqs * max(request.layer.indexer.topk, limits.max_model_len))
    return (Buffer(name="choice of keys", shape=(tokens, -(-max(tokens, context) // BITS)), dtype="int32", transient=True),)


def _list_parts(package: str, request: Request, limits: Limits, calls: Collection[str]) -> tuple[Buffer, ...]:
    machine = read_machine(package, request.device.arch)
    most_rows = limits.max_num_batched_tokens * request.heads_on_rank * MAX_PARTS
    sizes = [
        (min(most_rows, _most_rows(machine.arch.name, package, kernel, widths, request.dtype)), widths.value or widths.main)
        for kernel, widths in needed_tiles(request)
        if any(call in calls for call in _CALLS.get(kernel, ()))
    ]
    if not sizes:
        return ()
    rows, width = max(sizes, key=lambda size: size[0] * (size[1] + 1))
    return (Buffer(name="parts", shape=(rows, width + 1), dtype="float32", transient=True),)


@cache
def _most_rows(arch: str, package: str, kernel: str, widths: Widths, dtype: str) -> int:
    """Parts times result rows, at most.

    A call is split where its programs do not fill the device, into just as many parts as fill it: programs times parts stay
    below twice what fills it, and a program has a tile's rows, or a piece of each of them.
    """
    machine = read_machine(package, arch)
    return max((2 * machine.programs * tile.block_m // tile.num_c for tile in _tiles(machine, kernel, widths, dtype)), default=0)


def _tiles(machine: Machine, kernel: str, widths: Widths, dtype: str) -> Iterator[Tile]:
    for rows in _ROWS:
        tile = choose_tile(machine, kernel, widths, dtype, rows)
        if isinstance(tile, Tile):
            yield tile
