"""What kernel calls take: caches, batches over pages and over keys that lie end to end, index segments and chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .cache import KVCache
from .compressor import CompressedBatch
from .errors import BackendError, BatchError
from .limits import check_positive_int

if TYPE_CHECKING:
    import torch

    from .compressor import Compressor

__all__ = [
    "CompressedBatch",
    "IndexInputs",
    "IndexerChunk",
    "KVCache",
    "PagedBatch",
    "Segment",
    "VarlenBatch",
    "refuse_key_ranges",
    "refuse_sink",
]


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """What a paged call needs of a batch; anyone can make one.

    query_start_loc: int32 [requests + 1], from 0; query rows past its last entry belong to no request and see no key.
    seq_lens: int32 [requests], new tokens included: a request's last query is its last position. block_table: int32
    [requests, pages]; -1 stands for a page that no query reads any more. Where queries do see keys of an id outside the cache,
    the portable kernels and the CPU's leave out those keys; a vendor's cannot, so they refuse the call, or show the request no
    key where the host cannot see the table. In the builder's batches no such request has a length. max_query_len and
    max_seq_len are upper bounds. The first num_decodes requests are short queries.
    key_starts, key_stops: int32 [tokens], the keys key_starts <= key < key_stops that each query may see in place of any
    causality, window or chunk (a missing start is 0); honoured by backends that declare key_ranges. Over DCP ranks they and
    seq_lens count in this rank's share, and a request's queries need not be among its last keys.
    memo: what a backend works out of the batch and keeps for a step's other layers; only the builder gives one, since it
    never changes the tensors behind a batch that is in use.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    max_query_len: int
    max_seq_len: int
    num_decodes: int = 0
    memo: dict[object, object] | None = field(default=None, compare=False, repr=False)
    key_starts: torch.Tensor | None = None
    key_stops: torch.Tensor | None = None

    @classmethod
    def from_token_table(
        cls,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        token_table: torch.Tensor,
        *,
        block_size: int,
        max_query_len: int,
        max_seq_len: int,
        num_decodes: int = 0,
    ) -> PagedBatch:
        """The batch of an engine that keeps the slot of every token: token_table int32 [requests, tokens], -1 for none.

        A slot is page * block_size + offset. The first token of each page says which page it is, and the others follow it
        there; with pages of one token the table is the block table itself, and no copy is made. InputError for a page of less
        than one token, BatchError for a table of another type or shape.
        """
        from .tensor_faults import INT32, MATRIX, find_fault

        check_positive_int("block_size", block_size)
        if fault := find_fault("token_table", token_table, INT32, MATRIX):
            raise BatchError(fault)
        table = token_table if block_size == 1 else token_table[:, ::block_size] // block_size
        return cls(query_start_loc, seq_lens, table, max_query_len, max_seq_len, num_decodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenBatch:
    """Which queries and keys that lie end to end are of which request.

    q_start_loc, k_start_loc: int32 [requests + 1]. max_query_len and max_seq_len are upper bounds of a request's queries and
    keys. selected: int32 [tokens, width], the request-local ids of the only keys that each query may see, -1 for none;
    first_key: int32 [requests], the id of each request's first key here, 0 where it is None. Only with masked_varlen.
    """

    q_start_loc: torch.Tensor
    k_start_loc: torch.Tensor
    max_query_len: int
    max_seq_len: int
    selected: torch.Tensor | None = None
    first_key: torch.Tensor | None = None


def refuse_key_ranges(batch: PagedBatch, call: str) -> None:
    """Raise BackendError where a batch has key ranges: for calls that would take no notice of them."""
    if batch.key_starts is not None or batch.key_stops is not None:
        raise BackendError(f"{call} takes no key ranges here (key_ranges is not declared); their queries would see other keys")


def refuse_sink(sink: torch.Tensor | None, call: str) -> None:
    """Raise BackendError for a sink: for calls that would take no notice of it."""
    if sink is not None:
        raise BackendError(f"{call} takes no sink here (inner_sinks does not name it); give its result and lse to apply_sink")


class Segment(NamedTuple):
    """One list of cache rows that sparse_mla attends to: rows int32 [tokens, width] compacted, valid int32 [tokens].

    A row counts as often as it is listed: rows_from_topk, whose ids are a set, lists none twice.
    hal's own kernels see no key on a row outside the cache, -1 among them.
    """

    cache: KVCache
    rows: torch.Tensor
    valid: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerChunk:
    """A run of query tokens scored together: token positions in the batch's token order, the requests they belong to.

    max_seq_len: the most keys any of them sees, the width of the score matrix.
    """

    token_start: int
    token_stop: int
    request_start: int
    request_stop: int
    max_seq_len: int


class IndexInputs(NamedTuple):
    """What a layer's own indexer made of a step: q [tokens, index_heads, index_dim], k [tokens, index_dim] and weights.

    weights [tokens, index_heads] have all scales folded in: a score is
    sum_h weights_h * relu(q_h . k). Where tokens share a key, k is the compressor that makes it, or keys that are made
    already, of which the row of each group's last token counts.
    """

    q: torch.Tensor
    k: torch.Tensor | Compressor
    weights: torch.Tensor
