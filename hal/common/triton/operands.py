"""What a host can see wrong with the tensors of the calls around attention; addresses are worked out from them unseen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hal.common.contract.dense import dense_numbers, refuse_shared
from hal.common.contract.errors import BatchError, LayoutError

if TYPE_CHECKING:
    import torch

    from hal.common.contract.call_values import IndexerChunk, PagedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """The keys that each query sees, int32 [tokens]: those below its stop, from its start on where starts are given.

    Without stops a query sees what its position and its layer's rule leave.
    """

    starts: Any = None
    stops: Any = None

    @property
    def number(self) -> int:
        """How many ends are given, as kernels call it."""
        return (self.stops is not None) + (self.starts is not None)

    def tables(self, other: Any) -> dict[str, Any]:
        """Both ends as tensors of a launch, another tensor in place of one that is not given."""
        return {
            "key_starts": other if self.starts is None else self.starts,
            "key_stops": other if self.stops is None else self.stops,
        }


NO_RANGES = Ranges()


def check_floats(name: str, tensor: torch.Tensor | None, dims: int) -> None:
    """Raise LayoutError for what is no tensor of floats of so many dimensions."""
    from hal.common.contract.tensor_faults import ANY, FLOATS, find_fault

    if fault := find_fault(name, tensor, FLOATS, (ANY,) * dims):
        raise LayoutError(fault)


def read_sink(sink: torch.Tensor | None, heads: int, out: torch.Tensor | None) -> torch.Tensor | None:
    """dense_sink of a call's sink where it has one; LayoutError where it lies in the memory of out, too."""
    if sink is None:
        return None
    refuse_shared(out, sink=sink)
    return dense_sink(sink, heads)


def dense_sink(sink: torch.Tensor, heads: int) -> torch.Tensor:
    """A sink as kernels read it, dense fp32 [heads], in whatever float type an engine keeps it; LayoutError for another shape."""
    check_floats("sink", sink, 1)
    if sink.shape[0] != heads:
        raise LayoutError(f"sink has {sink.shape[0]} entries; the results have {heads} heads")
    return sink.float().contiguous()


def check_slots(slots: torch.Tensor) -> None:
    """Raise BatchError for slots that are not int64 [tokens]: pages times their size may pass 2**31."""
    from hal.common.contract.tensor_faults import FLAT, INT64, find_fault

    if fault := find_fault("slots", slots, INT64, FLAT):
        raise BatchError(fault)


def key_ranges(batch: PagedBatch, tokens: int) -> Ranges:
    """The keys that a batch's queries see where it says so query by query, as dense int32.

    BatchError for starts without stops, or for ranges of fewer queries than there are.
    """
    if batch.key_stops is None:
        if batch.key_starts is not None:
            raise BatchError("batch.key_starts is given and key_stops is not; expected both, or stops alone")
        return Ranges()
    stops = dense_numbers("batch.key_stops", batch.key_stops)
    starts = None if batch.key_starts is None else dense_numbers("batch.key_starts", batch.key_starts)
    for name, given in (("key_stops", stops), ("key_starts", starts)):
        if given is not None and given.shape[0] < tokens:
            raise BatchError(f"batch.{name} has {given.shape[0]} entries for {tokens} queries; expected one each")
    return Ranges(starts=starts, stops=stops)


def check_chunk(chunk: IndexerChunk, batch: PagedBatch, tokens: int) -> None:
    """Raise BatchError for a chunk that ends past the step's tokens or requests."""
    requests = batch.seq_lens.shape[0]
    if chunk.token_stop > tokens or chunk.request_stop > requests:
        raise BatchError(
            f"the chunk ends at token {chunk.token_stop} and request {chunk.request_stop}; there are {tokens} tokens and "
            f"{requests} requests"
        )


def check_choice(scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int) -> None:
    """Raise LayoutError or BatchError where scores, lengths and the numbers of a choice do not go together."""
    check_floats("scores", scores, 2)
    _check_tokens("scores", scores, "lengths", lengths)
    if not 0 <= k <= width:
        raise LayoutError(f"{k} keys to choose in rows of {width}; expected 0 to {width}")


def check_pools(topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int) -> None:
    """Raise LayoutError or BatchError where pools do not fit in the rows, or rows and lengths are not as many."""
    _check_tokens("topk", topk, "lengths", lengths)
    if pool < 1 or topk.shape[1] * pool + pool - 1 > width:
        raise LayoutError(
            f"{topk.shape[1]} pools of {pool} tokens and an open tail in rows of {width}; expected pools of 1 at least that fit"
        )


def check_rows(
    topk: torch.Tensor, req_id: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, page_stride: int
) -> None:
    """Raise BatchError where ids, requests, table and lengths are not as many, or a page holds no tokens."""
    _check_tokens("topk", topk, "req_id", req_id)
    if block_table.shape[0] != seq_lens.shape[0]:
        raise BatchError(
            f"block_table has {block_table.shape[0]} requests and seq_lens {seq_lens.shape[0]}; they must be as many"
        )
    if not 1 <= block_size <= page_stride:
        raise BatchError(f"block_size {block_size} does not fit in {page_stride} rows per page; expected 1 to as many")


def check_state(out: torch.Tensor, lse: torch.Tensor) -> None:
    """Raise LayoutError for a result [tokens, heads, width] and an lse of other tokens or heads."""
    check_floats("out", out, 3)
    check_floats("lse", lse, 2)
    if out.shape[:2] != lse.shape:
        raise LayoutError(f"out {list(out.shape)} and lse {list(lse.shape)} do not go together; lse needs out's tokens and heads")


def _check_tokens(first: str, one: torch.Tensor, second: str, other: torch.Tensor) -> None:
    if one.shape[0] != other.shape[0]:
        raise BatchError(f"tokens differ: {first} {one.shape[0]}, {second} {other.shape[0]}; they must be as many")
