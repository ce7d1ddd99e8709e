"""Every kernel that a layer's calls launch on an arch, from the functions that make the launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hal.common.contract.call_values import IndexerChunk
from hal.common.contract.exchanges import divisors
from hal.common.contract.layouts import state_layout
from hal.common.contract.masking import Masking, masking_of
from hal.common.contract.reason import Reason
from hal.common.contract.request import Request
from hal.config import LayerShape
from hal.config.dtypes import item_size

from .attend import Keys, Queries, Results, Rules, attend_launch, attend_passes, count_rows, listed_keys, paged_keys
from .cache import read_launch, write_launch
from .choice import mark_launch
from .compress import Mixture, Places, mix_launch
from .launch import Launch
from .merge import join_launch, merge_launch, sink_launch
from .operands import NO_RANGES, Ranges
from .request_layouts import index_keys_layout, kv_layout, stand_ins
from .rows import rows_launch
from .scores import score_launch
from .sparse import Rows, sparse_launch
from .specialisation import Specialisation, specialise
from .stand_in import StandIn, head_major, id_rows, spaced, stand_in
from .stored import Stored
from .tiles import Machine, Tile, Widths, choose_tile, latent_widths
from .topk import choose_launch, expand_launch

# Counts of no other consequence than their class: more than 1 and no multiple of 16.
_TOKENS, _REQUESTS, _COLUMNS = 257, 3, 515
_PARTS = 2
# Numbers of keys, each with one more factor of 2.
_KEYS = tuple(256 + (1 << power) for power in range(5))
# Query lengths whose tiles differ: up to the tallest tile, by powers of two, since one token may be any number of rows.
# Widths of lists whose classes differ, and the powers of two that cover them.
_LIST_WIDTHS = tuple(width for power in range(4, 11) for width in (*((1,) if power == 4 else ()), (1 << power) - 1, 1 << power))
_QUERY_LENS = tuple(1 << power for power in range(9))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A PagedBatch of stand-ins."""

    query_start_loc: StandIn
    seq_lens: StandIn
    block_table: StandIn
    max_query_len: int
    max_seq_len: int


def list_specialisations(machine: Machine, request: Request, block_size: int) -> tuple[Specialisation, ...]:
    """What a request's calls compile, each once, in the order of the calls; a tile that does not fit is left out."""
    made = (specialise(launch, machine.arch.name) for launch in _launches(machine, request, block_size))
    return tuple({found.key: found for found in made}.values())


def _launches(machine: Machine, request: Request, block_size: int) -> Iterator[Launch]:
    layer, dtype = request.layer, request.dtype
    layout = kv_layout(request)
    caches = stand_ins(layout, block_size)
    if layer.kind == "compressed":
        yield from _compressed_launches(machine, request, block_size)
        return
    yield from _cache_launches(caches, dtype)
    if layer.mla is None:
        for stored in caches:
            yield from _paged_launches(machine, request, stored)
        yield from _result_launches(request, layer.v_head_dim)
        return
    if layer.indexer is None:
        for stored in caches:
            yield from _paged_launches(machine, request, stored)
    else:
        yield from _indexer_launches(machine, request, block_size)
        for stored in caches:
            yield from _sparse_launches(machine, request, stored)
    yield from _varlen_launches(machine, request)
    yield from _result_launches(request, layer.v_head_dim)
    yield from _result_launches(request, layer.mla.kv_lora_rank)


def _compressed_launches(machine: Machine, request: Request, block_size: int) -> Iterator[Launch]:
    """Writes to a window and to entries, what makes these, and attention to lists of both."""
    layer, ratio = request.layer, request.layer.compress_ratio
    pages = (block_size, block_size // ratio) if ratio else (block_size,)
    stored = [each for page in pages for each in stand_ins(kv_layout(request), page)]
    yield from _cache_launches(stored[:1], request.dtype)
    if layer.owns_entries:
        yield from _entry_launches(request, stored[-1], layer.head_dim, block_size)
    if layer.indexer is not None:
        yield from _indexer_launches(machine, request, block_size)
    # What no indexer picks is the last so many positions, of a window or of all entries.
    for page in pages:
        yield from _list_rows(request, page)
    for each in stored:
        yield from _sparse_launches(machine, request, each)
    yield from _result_launches(request, layer.head_dim)


def _entry_launches(request: Request, entries: Stored, width: int, block_size: int) -> Iterator[Launch]:
    """A step's states are written, and the entries that are made of them, normalised or not and rotated or not."""
    layer = request.layer
    ratio = layer.compress_ratio or layer.tokens_per_index_key
    span = layer.compress_span or ratio
    wide, pairs = span // ratio * width, (layer.rope_head_dim or 0) // 2
    slots, ints, kv = stand_in("int64", _TOKENS), stand_in("int32", _TOKENS), stand_in("float32", _TOKENS, wide)
    kept = min(block_size, span + request.num_spec_tokens)
    (states,) = stand_ins(state_layout(wide, request.dtype), kept)
    places = Places(
        entry_slots=slots, query_start_loc=ints, req_id=ints, positions=slots, block_table=stand_in("int32", _REQUESTS, 128)
    )
    mixed, angles = stand_in("float32", _TOKENS, width), stand_in("float32", _TOKENS, pairs)
    for norm, turns in product((None, stand_in("float32", width)), dict.fromkeys((None, angles if pairs else None))):
        mixture = Mixture(
            kv=kv,
            score=kv,
            states=states,
            width=width,
            ratio=ratio,
            page=block_size,
            norm=norm,
            eps=1e-6,
            cos=turns,
            sin=turns,
        )
        yield mix_launch(mixture, places, mixed)
    yield write_launch(states, [kv, kv], slots)
    # Parts of an entry are views of its row.
    parts = [spaced("float32", _TOKENS, each, width) for each in entries.layout.widths if each]
    yield write_launch(entries, parts, slots)


def _list_rows(request: Request, page: int) -> Iterator[Launch]:
    ints, batch = stand_in("int32", _TOKENS), _batch(_TOKENS)
    for width in _LIST_WIDTHS:
        ids = stand_in("int32", _TOKENS, width)
        yield rows_launch(ids, ints, batch.block_table, batch.seq_lens, ids, ints, page, page, request.parallel)


def _cache_launches(caches: Sequence[Stored], dtype: str) -> Iterator[Launch]:
    """Parts come in the layer's type, and go in it unless they are quantised."""
    slots, rows = stand_in("int64", _TOKENS), stand_in("int32", _TOKENS)
    for stored in caches:
        widths = [width for width in stored.layout.widths if width]
        yield write_launch(stored, [stand_in(dtype, _TOKENS, width) for width in widths], slots)
        if any(width % 16 for width in widths):
            # Parts may be views of one projection of them all and more, whose rows are a multiple of 16 apart or are not; so may
            # be the addresses they begin at.
            starts = (0, 8) if any(width * item_size(dtype) % 16 for width in widths) else (0,)
            for stride, *addresses in product((16 * sum(widths), 16 * sum(widths) + 8), *(starts for _ in widths)):
                views = [
                    replace(spaced(dtype, _TOKENS, width, stride), address=at)
                    for width, at in zip(widths, addresses, strict=True)
                ]
                yield write_launch(stored, views, slots)
        kind = "float32" if stored.layout.is_quantised else dtype
        yield read_launch(stored, rows, [stand_in(kind, _TOKENS, width) for width in widths])


def _paged_launches(machine: Machine, request: Request, stored: Stored) -> Iterator[Launch]:
    layer, dtype = request.layer, request.dtype
    # Values begin within a row, at an address that is a multiple of 16 where the keys' bytes are.
    ahead = 0 if layer.mla else stored.layout.widths[0] * item_size(stored.layout.dtype)
    values = replace(stored.rows, address=ahead)
    masking = masking_of(layer)
    ranges, width = NO_RANGES, sum(stored.layout.widths) if layer.mla else layer.head_dim
    if request.parallel.dcp > 1:
        # A rank's share of the keys comes query by query.
        masking, ranges = Masking(causal=False, softcap=layer.softcap), _ranges(2)
    for max_len, heads in product(_QUERY_LENS, _query_heads(request)):
        batch = _batch(max_len)
        keys = paged_keys(stored, values, batch, ranges)
        for q in _query_views(dtype, heads, width):
            queries = Queries(q=q, start_loc=batch.query_start_loc, num_requests=_REQUESTS, max_len=max_len)
            rules = Rules(masking=masking, scale=layer.softmax_scale)
            yield from _attend_launches(machine, queries, keys, rules, _has_inner_sink(request))


def _query_views(dtype: str, heads: int, width: int) -> Iterator[StandIn]:
    """Queries as a call may get them: dense, or a view of one projection with keys and values, whose rows lie apart.

    Where a head is no multiple of 16 elements, such rows may be one and dense ones not, or the other way round.
    """
    yield stand_in(dtype, _TOKENS, heads, width)
    if width % 16:
        apart = 16 * heads * width
        addresses = (0, 8) if width * item_size(dtype) % 16 else (0,)
        for row, address in product((apart, apart + 8), addresses):
            yield StandIn(dtype=dtype, shape=(_TOKENS, heads, width), strides=(row, width, 1), address=address)


def _query_heads(request: Request) -> tuple[int, ...]:
    """How many query heads a call may have: a rank's, and over DCP ranks that divide them those of all."""
    parallel, own = request.parallel, _rank_heads(request)
    if parallel.dcp == 1 or parallel.tp % parallel.dcp:
        return own
    return tuple(dict.fromkeys((*own, *(heads * parallel.dcp for heads in own))))


def _rank_heads(request: Request) -> tuple[int, ...]:
    """How many of a rank's heads are attended to at once: over DCP ranks those of a latent may be fewer than all."""
    heads = request.heads_on_rank
    return (heads,) if request.parallel.dcp == 1 or request.layer.mla is None else divisors(heads)


def _ranges(number: int) -> Ranges:
    ends = stand_in("int32", _TOKENS)
    return Ranges(starts=ends if number == 2 else None, stops=ends if number else None)


def _varlen_launches(machine: Machine, request: Request) -> Iterator[Launch]:
    layer, dtype, heads = request.layer, request.dtype, request.heads_on_rank
    start_loc = stand_in("int32", _REQUESTS + 1)
    widths = (layer.head_dim, layer.v_head_dim)
    q = stand_in(dtype, _TOKENS, heads, layer.head_dim)
    # Heads lie as many rows apart as there are keys, whose number decides the class where a row's width does not.
    counts = _KEYS if any(width % 16 for width in widths) else _KEYS[:1]
    choices: tuple[StandIn | None, ...] = (None,)
    if layer.indexer is not None:
        bits, firsts = stand_in("int32", _TOKENS, _COLUMNS), stand_in("int32", _REQUESTS)
        choices = (None, bits)
        for chosen in id_rows(_TOKENS, layer.indexer.width):
            yield mark_launch(chosen, start_loc, start_loc, firsts, bits, _TOKENS)
    for count, causal, max_len, choice in product(counts, (True, False), _QUERY_LENS, choices):
        k, v = (head_major(dtype, count, heads, width) for width in widths)
        queries = Queries(q=q, start_loc=start_loc, num_requests=_REQUESTS, max_len=max_len)
        keys = listed_keys(k, v, start_loc, count, choice)
        rules = Rules(masking=Masking(causal=causal), scale=layer.softmax_scale)
        yield from _attend_launches(machine, queries, keys, rules)


def _attend_launches(machine: Machine, queries: Queries, keys: Keys, rules: Rules, has_sink: bool = False) -> Iterator[Launch]:
    tokens, heads, _ = queries.q.shape
    dtype = queries.q.dtype
    tile = choose_tile(machine, keys.call, keys.widths, dtype, count_rows(queries, keys))
    if isinstance(tile, Reason):
        return
    passes = attend_passes(tile, queries, keys, rules.masking)
    for results, repairs in product(_results(dtype, tokens, heads, keys.value, has_sink), passes):
        yield attend_launch(tile, queries, keys, rules, results, repairs)


def _sparse_launches(machine: Machine, request: Request, stored: Stored) -> Iterator[Launch]:
    layer, dtype = request.layer, request.dtype
    widths, valid = latent_widths(stored.layout), stand_in("int32", _TOKENS)
    for heads in _query_heads(request):
        tile = choose_tile(machine, "sparse", widths, dtype, heads)
        if isinstance(tile, Reason):
            return
        q = stand_in(dtype, _TOKENS, heads, widths.main + widths.rest)
        written = _results(dtype, _TOKENS, heads, widths.main, _has_inner_sink(request))
        for rows, results in product(_row_lists(layer), written):
            listed = Rows(stored=stored, rows=rows, valid=valid)
            yield sparse_launch(tile, widths, q, listed, results, layer.softmax_scale, 0, results.out.shape[0])


def _row_lists(layer: LayerShape) -> tuple[StandIn, ...]:
    """Lists of rows of every class: those that an indexer picks, and of compressed layers any number of last ones."""
    if layer.kind == "compressed":
        return tuple(stand_in("int32", _TOKENS, width) for width in _LIST_WIDTHS[:3])
    return () if layer.indexer is None else id_rows(_TOKENS, layer.indexer.width)


def _results(dtype: str, tokens: int, heads: int, width: int, has_sink: bool) -> Iterator[Results]:
    """Where a pass can write: the caller's tensors without and with an LSE and a sink, and parts to be joined."""
    out, lse = stand_in(dtype, 1, tokens, heads, width), stand_in("float32", 1, tokens, heads)
    for sink in _sinks(heads, has_sink):
        yield Results(out=out, lse=None, sink=sink)
        yield Results(out=out, lse=lse, sink=sink)
    yield Results(out=stand_in("float32", _PARTS, tokens, heads, width), lse=stand_in("float32", _PARTS, tokens, heads))


def _indexer_launches(machine: Machine, request: Request, block_size: int) -> Iterator[Launch]:
    indexer, dtype = request.layer.indexer, request.dtype
    if indexer is None:
        return
    topk, ints = stand_in("int32", _TOKENS, indexer.width), stand_in("int32", _TOKENS)
    batch, best = _batch(_TOKENS), indexer.topk // indexer.pool
    if indexer.owns:
        (keys,) = stand_ins(index_keys_layout(request), block_size // request.layer.tokens_per_index_key)
        yield from _cache_launches((keys,), dtype)
        if request.layer.tokens_per_index_key > 1:
            yield from _entry_launches(request, keys, indexer.head_dim, block_size)
        tile = choose_tile(machine, "scores", Widths(main=indexer.head_dim, sums_values=False), dtype, indexer.num_heads)
        scores = stand_in("float32", _TOKENS, _COLUMNS)
        if isinstance(tile, Tile):
            iq = stand_in(dtype, _TOKENS, indexer.num_heads, indexer.head_dim)
            # Keys of pools are counted by their stops, those of a rank's share by both ends.
            ends = {0, 1} if request.layer.tokens_per_index_key > 1 else {0}
            for number in {2} if request.parallel.dcp > 1 else ends:
                yield _score(tile, iq, keys, batch, scores, _ranges(number))
        picked = topk if indexer.pool == 1 else stand_in("int32", _TOKENS, best)
        yield choose_launch(scores, ints, picked, best)
        if indexer.pool > 1:
            for some in id_rows(_TOKENS, best):
                yield expand_launch(some, ints, topk, indexer.pool)
    page = block_size // (request.layer.compress_ratio or 1)
    for chosen in id_rows(_TOKENS, indexer.width):
        yield rows_launch(chosen, ints, batch.block_table, batch.seq_lens, topk, ints, page, page, request.parallel)


def _score(tile: Tile, iq: StandIn, keys: Stored, batch: _Batch, scores: StandIn, ranges: Ranges) -> Launch:
    tokens, heads, _ = iq.shape
    chunk = IndexerChunk(token_start=0, token_stop=tokens, request_start=0, request_stop=_REQUESTS, max_seq_len=_COLUMNS)
    return score_launch(tile, iq, stand_in("float32", tokens, heads), keys, batch, chunk, scores, ranges)


def _result_launches(request: Request, width: int) -> Iterator[Launch]:
    dtype, has_sink = request.dtype, request.layer.sink
    for heads in _query_heads(request):
        out, lse = stand_in(dtype, _TOKENS, heads, width), stand_in("float32", _TOKENS, heads)
        parts, parts_lse = stand_in("float32", _PARTS, *out.shape), stand_in("float32", _PARTS, *lse.shape)
        for sink in _sinks(heads, _has_inner_sink(request)):
            yield join_launch(parts, parts_lse, out, None, sink)
            yield join_launch(parts, parts_lse, out, lse, sink)
        yield merge_launch(out, lse, out, lse, out, lse)
        if has_sink:
            yield sink_launch(out, lse, stand_in("float32", heads), out)
    if request.parallel.dcp > 1:
        yield from _rank_merges(request, width)


def _has_inner_sink(request: Request) -> bool:
    """Whether calls are given a sink: what ranks have apart is merged first."""
    return request.layer.sink and request.parallel.dcp == 1


def _sinks(heads: int, has_sink: bool) -> tuple[StandIn | None, ...]:
    """What a pass or a join is given as sink: none where something is merged with its results."""
    return (None, stand_in("float32", heads)) if has_sink else (None,)


def _rank_merges(request: Request, width: int) -> Iterator[Launch]:
    """Results of DCP ranks are merged in fp32; those that come in it come with their LSE behind them."""
    for heads in _rank_heads(request):
        yield from _merges_of_heads(request, heads, width)


def _merges_of_heads(request: Request, heads: int, width: int) -> Iterator[Launch]:
    merged, lse = stand_in("float32", _TOKENS, heads, width), stand_in("float32", _TOKENS, heads)
    apart = replace(merged, strides=(heads * (width + 1), width + 1, 1))
    received = (apart, replace(apart, address=4)) if request.dtype == "float32" else (merged,)
    for first, second in product((merged, *received), received):
        yield merge_launch(first, lse, second, lse, merged, lse)
    if request.layer.sink:
        yield sink_launch(merged, lse, stand_in("float32", heads), merged)


def _batch(max_query_len: int) -> _Batch:
    return _Batch(
        query_start_loc=stand_in("int32", _REQUESTS + 1),
        seq_lens=stand_in("int32", _REQUESTS),
        block_table=stand_in("int32", _REQUESTS, 128),
        max_query_len=max_query_len,
        max_seq_len=_COLUMNS,
    )
