"""Backends with one mistake each, of the kinds that real kernels have made."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from hal.common.contract.call_values import Segment
from hal.common.contract.masking import CAUSAL
from hal.common.contract.parallel import Parallel
from hal.testing import ReferenceBackend, reference


class IgnoresWindow(ReferenceBackend):
    def paged_attention(self, *args, masking=CAUSAL, **kwargs):
        return super().paged_attention(*args, masking=replace(masking, window=None), **kwargs)


class WindowKeepsOneMore(ReferenceBackend):
    def paged_attention(self, *args, masking=CAUSAL, **kwargs):
        wider = replace(masking, window=masking.window and masking.window + 1)
        return super().paged_attention(*args, masking=wider, **kwargs)


class IgnoresChunk(ReferenceBackend):
    def paged_attention(self, *args, masking=CAUSAL, **kwargs):
        return super().paged_attention(*args, masking=replace(masking, chunk=None), **kwargs)


class ChunkIsAWindow(ReferenceBackend):
    def paged_attention(self, *args, masking=CAUSAL, **kwargs):
        windowed = replace(masking, chunk=None, window=masking.chunk or masking.window)
        return super().paged_attention(*args, masking=windowed, **kwargs)


class IgnoresSoftcap(ReferenceBackend):
    def varlen_attention(self, *args, masking=CAUSAL, **kwargs):
        return super().varlen_attention(*args, masking=replace(masking, softcap=None), **kwargs)


class AlwaysCausal(ReferenceBackend):
    def varlen_attention(self, *args, masking=CAUSAL, **kwargs):
        return super().varlen_attention(*args, masking=replace(masking, causal=True), **kwargs)


class ReadsUnwrittenRows(ReferenceBackend):
    def paged_attention(self, q, cache, batch, **kwargs):
        out, lse = super().paged_attention(q, cache, batch, **kwargs)
        return out.add_(0 * cache.storage.sum()), lse


class ReadsFreedPages(ReferenceBackend):
    def paged_attention(self, q, cache, batch, **kwargs):
        out, lse = super().paged_attention(q, cache, batch, **kwargs)
        widths = -(-batch.seq_lens // cache.block_size)
        for request, width in enumerate(widths.tolist()):
            for page in batch.block_table[request, :width].tolist():
                rows = cache.storage[page if page >= 0 else 0, :1]
                out += 0 * rows.sum()
        return out, lse


class LeavesEmptyRows(ReferenceBackend):
    def paged_attention(self, q, cache, batch, *, out=None, need_lse=False, **kwargs):
        fresh, lse = super().paged_attention(q, cache, batch, need_lse=True, **kwargs)
        out = torch.full_like(fresh, torch.nan) if out is None else out
        has_keys = lse > -math.inf
        out[has_keys] = fresh[has_keys]
        return out, lse if need_lse else None


class FiniteEmptyLse(ReferenceBackend):
    def sparse_mla(self, *args, **kwargs):
        out, lse = super().sparse_mla(*args, **kwargs)
        return out, None if lse is None else lse.clamp(min=-1e30)


class BaseTwoLse(ReferenceBackend):
    def paged_attention(self, *args, **kwargs):
        out, lse = super().paged_attention(*args, **kwargs)
        return out, None if lse is None else lse / math.log(2)

    def sparse_mla(self, *args, **kwargs):
        out, lse = super().sparse_mla(*args, **kwargs)
        return out, None if lse is None else lse / math.log(2)


class HalfPrecisionLse(ReferenceBackend):
    def varlen_attention(self, q, *args, **kwargs):
        out, lse = super().varlen_attention(q, *args, **kwargs)
        return out, None if lse is None else lse.to(torch.bfloat16)


class UnaskedLse(ReferenceBackend):
    def sparse_mla(self, *args, need_lse=False, **kwargs):
        return super().sparse_mla(*args, need_lse=True, **kwargs)


class IgnoresOut(ReferenceBackend):
    def sparse_mla(self, *args, out=None, **kwargs):
        return super().sparse_mla(*args, **kwargs)


class AlignsQueriesToTheFirstKey(ReferenceBackend):
    def varlen_attention(self, q, k, v, batch, *, masking=CAUSAL, **kwargs):
        if masking.causal:
            ends = batch.q_start_loc.tolist()
            starts = zip(ends[:-1], ends[1:], batch.k_start_loc[:-1].tolist(), strict=True)
            lengths = [(first, stop, key) for first, stop, key in starts]
            k_start_loc = torch.tensor([0, *(stop - first for first, stop, _ in lengths)]).cumsum(0)
            batch = replace(batch, k_start_loc=k_start_loc)
            picked = [key + index for first, stop, key in lengths for index in range(stop - first)]
            rows = torch.tensor(picked, dtype=torch.long).clamp(max=k.shape[0] - 1)
            k, v = k[rows], v[rows]
        return super().varlen_attention(q, k, v, batch, masking=masking, **kwargs)


class InterleavesHeadGroups(ReferenceBackend):
    def varlen_attention(self, q, k, *args, **kwargs):
        groups = q.shape[1] // k.shape[1]
        order = torch.arange(q.shape[1]).reshape(groups, k.shape[1]).t().flatten()
        return super().varlen_attention(q[:, order], k, *args, **kwargs)


class IgnoresSelection(ReferenceBackend):
    def varlen_attention(self, q, k, v, batch, **kwargs):
        return super().varlen_attention(q, k, v, replace(batch, selected=None), **kwargs)


class IgnoresFirstKey(ReferenceBackend):
    def varlen_attention(self, q, k, v, batch, **kwargs):
        return super().varlen_attention(q, k, v, replace(batch, first_key=None), **kwargs)


class AttendsAbsentRowsAsRowZero(ReferenceBackend):
    def sparse_mla(self, q, segments, **kwargs):
        whole = [Segment(c, rows.clamp(min=0), torch.full_like(valid, rows.shape[1])) for c, rows, valid in segments]
        return super().sparse_mla(q, whole, **kwargs)


class AttendsTheFirstListOnly(ReferenceBackend):
    def sparse_mla(self, q, segments, **kwargs):
        return super().sparse_mla(q, segments[:1], **kwargs)


class ReadsThirtyTwoBitAddresses(ReferenceBackend):
    def gather_cache(self, cache, rows):
        return super().gather_cache(cache, rows % (2**31 // cache.layout.width))


class ReadsRowMinusOne(ReferenceBackend):
    def gather_cache(self, cache, rows):
        return super().gather_cache(cache, rows.clamp(min=0))


class IgnoresPageStride(ReferenceBackend):
    def gather_cache(self, cache, rows):
        index = rows // cache.page_stride * cache.block_size + rows % cache.page_stride
        read = cache.rows[index.clamp(min=0)].masked_fill(rows[:, None] < 0, 0)
        return cache.layout.unpack(read)


class WritesSlotMinusOne(ReferenceBackend):
    def write_cache(self, cache, slots, *parts):
        last = cache.num_pages * cache.block_size - 1
        super().write_cache(cache, torch.where(slots < 0, last, slots), *parts)


class WritesWholePages(ReferenceBackend):
    def write_cache(self, cache, slots, *parts):
        super().write_cache(cache, slots, *parts)
        cache.storage[:, cache.block_size :] = 0


class ScoresWithoutRelu(ReferenceBackend):
    def index_scores(self, iq, weights, cache, batch, chunk=None):
        both = (torch.cat((iq, -iq), dim=1), torch.cat((weights, -weights), dim=1))
        return super().index_scores(*both, cache, batch, chunk)


class ScoresLeaveColumnsUnmasked(ReferenceBackend):
    def index_scores(self, *args):
        return super().index_scores(*args).nan_to_num(neginf=0.0)


class ScoresIgnoreChunkStart(ReferenceBackend):
    def index_scores(self, iq, weights, cache, batch, chunk=None):
        whole = super().index_scores(iq, weights, cache, batch)
        return whole if chunk is None else whole[: chunk.token_stop - chunk.token_start, : chunk.max_seq_len]


class IgnoresKeyRanges(ReferenceBackend):
    def paged_attention(self, q, cache, batch, **kwargs):
        return super().paged_attention(q, cache, replace(batch, key_starts=None, key_stops=None), **kwargs)


class EmptyRangesSeeAll(ReferenceBackend):
    def paged_attention(self, q, cache, batch, **kwargs):
        if batch.key_starts is not None:
            is_empty = batch.key_starts == batch.key_stops
            batch = replace(batch, key_starts=batch.key_starts.masked_fill(is_empty, 0))
        return super().paged_attention(q, cache, batch, **kwargs)


class ScoresIgnoreKeyRanges(ReferenceBackend):
    def index_scores(self, iq, weights, cache, batch, chunk=None):
        return super().index_scores(iq, weights, cache, replace(batch, key_starts=None, key_stops=None), chunk)


class TiesGoToTheHigherId(ReferenceBackend):
    def select_topk(self, scores, lengths, k, width, deterministic=True):
        topk = super().select_topk(scores, lengths, k, width)
        for row, length in enumerate(lengths.clamp(min=0).tolist()):
            flipped = super().select_topk(scores[row : row + 1, :length].flip(1), lengths[row : row + 1], k, width)
            topk[row] = torch.where(flipped < 0, flipped, length - 1 - flipped)
        return topk


class NanIsTheBest(ReferenceBackend):
    def select_topk(self, scores, *args):
        return super().select_topk(scores.nan_to_num(math.inf, math.inf, -math.inf), *args)


class MinusZeroIsSmaller(ReferenceBackend):
    def select_topk(self, scores, *args):
        is_minus_zero = (scores == 0) & scores.signbit()
        return super().select_topk(scores.masked_fill(is_minus_zero, -1e-30), *args)


class LooksPastTheLength(ReferenceBackend):
    def select_topk(self, scores, lengths, *args):
        return super().select_topk(scores, torch.where(lengths > 0, scores.shape[1], 0), *args)


class DropsMaskedColumns(ReferenceBackend):
    def select_topk(self, scores, lengths, k, width, deterministic=True):
        topk = super().select_topk(scores, lengths, k, width)
        chosen = scores.masked_fill(scores.isnan(), -math.inf).gather(1, topk.clamp(min=0).long()) if topk.numel() else topk
        return torch.where(chosen == -math.inf, -1, topk)


class DropsTheOpenTail(ReferenceBackend):
    def expand_pools(self, topk, lengths, pool, width):
        return super().expand_pools(topk, lengths // pool * pool, pool, width)


class SwapsTheHalvesOfGroups(ReferenceBackend):
    def compress_states(self, compressor, states, entries, *where, ratio):
        half = compressor.kv.shape[1] // 2
        turned = {name: getattr(compressor, name).roll(half, dims=1) for name in ("kv", "score", "position_bias")}
        overlaps = states.layout.widths[0] > entries.layout.widths[0]
        super().compress_states(replace(compressor, **turned) if overlaps else compressor, states, entries, *where, ratio=ratio)


class RotatesByTheClosingToken(ReferenceBackend):
    def compress_states(self, compressor, *where, ratio):
        super().compress_states(replace(compressor, cos=compressor.cos.roll(1, dims=0)), *where, ratio=ratio)


class ForgetsThePositionBias(ReferenceBackend):
    def compress_states(self, compressor, *where, ratio):
        flat = torch.zeros_like(compressor.position_bias)
        super().compress_states(replace(compressor, position_bias=flat), *where, ratio=ratio)


class ForgetsTheNorm(ReferenceBackend):
    def compress_states(self, compressor, *where, ratio):
        super().compress_states(replace(compressor, norm_weight=None), *where, ratio=ratio)


class CompressesPaddedTokens(ReferenceBackend):
    def compress_states(self, compressor, states, entries, batch, *, ratio):
        given = replace(batch, state_slots=batch.state_slots.clamp(min=0))
        super().compress_states(compressor, states, entries, given, ratio=ratio)


class WritesStatesBeforeReading(ReferenceBackend):
    def compress_states(self, compressor, states, entries, batch, *, ratio):
        nowhere = replace(batch, entry_slots=torch.full_like(batch.entry_slots, -1))
        super().compress_states(compressor, states, entries, nowhere, ratio=ratio)
        super().compress_states(compressor, states, entries, batch, ratio=ratio)


class MultipliesAbsentStatesByZero(ReferenceBackend):
    def compress_states(self, compressor, states, entries, *where, ratio):
        absent = (compressor.kv.sum() + states.storage[states.storage.isfinite()].sum()) * 0
        super().compress_states(compressor, states, entries, *where, ratio=ratio)
        entries.storage.add_(absent)


class WritesAmongZeros(ReferenceBackend):
    def write_cache(self, cache, slots, *parts):
        super().write_cache(cache, slots, *(part + (part * 0).sum(0) for part in parts))


class ReachesIntoTheNextRequest(ReferenceBackend):
    def rows_from_topk(self, topk, req_id, block_table, seq_lens, **kwargs):
        return super().rows_from_topk(topk, req_id, block_table, torch.full_like(seq_lens, 2**31 - 1), **kwargs)


class NegativeBlockIsBlockZero(ReferenceBackend):
    def rows_from_topk(self, topk, req_id, block_table, seq_lens, **kwargs):
        return super().rows_from_topk(topk, req_id, block_table.clamp(min=0), seq_lens, **kwargs)


class ClampsTheTableInPlace(ReferenceBackend):
    def paged_attention(self, q, cache, batch, **kwargs):
        result = super().paged_attention(q, cache, batch, **kwargs)
        batch.block_table.clamp_(min=0)
        return result


class RowsIgnorePageStride(ReferenceBackend):
    def rows_from_topk(self, *args, rows_per_page=None, **kwargs):
        return super().rows_from_topk(*args, **kwargs)


class RowsKeepTheirColumns(ReferenceBackend):
    def rows_from_topk(self, topk, *args, **kwargs):
        rows, valid = super().rows_from_topk(topk, *args, **kwargs)
        return rows.flip(1), valid


class RowsLoseTheirOrder(ReferenceBackend):
    def rows_from_topk(self, topk, *args, **kwargs):
        return super().rows_from_topk(topk.flip(1), *args, **kwargs)


class RowsOfEveryRank(ReferenceBackend):
    def rows_from_topk(self, *args, parallel, **kwargs):
        return super().rows_from_topk(*args, parallel=Parallel(), **kwargs)


class RunsOfOneToken(ReferenceBackend):
    def rows_from_topk(self, *args, parallel, **kwargs):
        return super().rows_from_topk(*args, parallel=replace(parallel, interleave=1), **kwargs)


class MergesDeadOutputs(ReferenceBackend):
    def merge_states(self, out_a, lse_a, out_b, lse_b):
        _, lse = super().merge_states(out_a, lse_a, out_b, lse_b)
        sides = ((out_a, lse_a), (out_b, lse_b))
        weighted = [out * torch.exp(level - lse).nan_to_num(0.0)[..., None] for out, level in sides]
        return sum(weighted).to(out_a.dtype), lse


class InfiniteLseIsAlive(ReferenceBackend):
    def merge_states(self, out_a, lse_a, out_b, lse_b):
        return super().merge_states(out_a, lse_a.nan_to_num(neginf=-math.inf), out_b, lse_b.clamp(max=3e38))


class RoundsTheIdentity(ReferenceBackend):
    def merge_states(self, out_a, lse_a, out_b, lse_b):
        out, lse = reference.merge_states(out_a, lse_a, out_b, lse_b)
        return (out * (1 + 1e-5)).to(out_a.dtype), lse.float()


class AppliesSinkTwice(ReferenceBackend):
    def apply_sink(self, out, lse, sink):
        return super().apply_sink(super().apply_sink(out, lse, sink), lse, sink)


class IgnoresSink(ReferenceBackend):
    def apply_sink(self, out, lse, sink):
        return out


def nothing_of(*tensors):
    """Zero, unless one of the values is NaN or infinite: what a weight of zero makes of them."""
    return sum(0 * tensor.float().sum() for tensor in tensors)


class LeaksHiddenKeys(ReferenceBackend):
    def paged_attention(self, q, cache, batch, **kwargs):
        out, lse = super().paged_attention(q, cache, batch, **kwargs)
        starts = batch.query_start_loc.tolist()
        for request, length in enumerate(batch.seq_lens.tolist()):
            keys = reference.paged.read_keys(cache, batch.block_table[request].tolist(), length)
            out[starts[request] : starts[request + 1]] += nothing_of(*keys)
        return out, lse


class LeaksKeysBeforeTheWindow(ReferenceBackend):
    def paged_attention(self, q, cache, batch, *, masking=CAUSAL, **kwargs):
        out, lse = super().paged_attention(q, cache, batch, masking=masking, **kwargs)
        for token, length in zip(batch.query_start_loc[1:].tolist(), batch.seq_lens.tolist(), strict=True):
            request = batch.query_start_loc.tolist().index(token) - 1
            keys = reference.paged.read_keys(cache, batch.block_table[request].tolist(), length)
            first = max(0, length - (masking.window or length)) // 16 * 16
            out[token - 1] += nothing_of(*(part[first:] for part in keys))
        return out, lse


class LeaksOtherChunks(LeaksHiddenKeys):
    pass


class LeaksKeysOutsideRanges(LeaksHiddenKeys):
    pass


class KeepsWhatEmptyRowsHold(ReferenceBackend):
    def apply_sink(self, out, lse, sink):
        return super().apply_sink(out, lse, sink) + 0 * out


class LeaksHiddenValues(ReferenceBackend):
    def varlen_attention(self, q, k, v, batch, **kwargs):
        out, lse = super().varlen_attention(q, k, v, batch, **kwargs)
        return out.add_(nothing_of(v[: int(batch.k_start_loc[-1])])), lse


class LeaksHiddenLogits(ReferenceBackend):
    def varlen_attention(self, q, k, v, batch, **kwargs):
        out, lse = super().varlen_attention(q, k, v, batch, **kwargs)
        return out, lse if lse is None else lse + nothing_of(k[: int(batch.k_start_loc[-1])])


class LeaksUnlistedRows(ReferenceBackend):
    def sparse_mla(self, q, segments, **kwargs):
        out, lse = super().sparse_mla(q, segments, **kwargs)
        for cache, rows, _ in segments:
            listed = rows[rows >= 0].unique()
            out += nothing_of(*self.gather_cache(cache, listed))
        return out, lse


class ScoresLeakLaterKeys(ReferenceBackend):
    def index_scores(self, iq, weights, cache, batch, chunk=None):
        scores = super().index_scores(iq, weights, cache, batch, chunk)
        for request, length in enumerate(batch.seq_lens.tolist()):
            tokens = slice(int(batch.query_start_loc[request]), int(batch.query_start_loc[request + 1]))
            table = batch.block_table[request].tolist()
            scores[tokens] += nothing_of(*reference.caches.read_request(cache, table, length))
        return scores


class GathersNeighbours(ReferenceBackend):
    def gather_cache(self, cache, rows):
        parts, neighbours = super().gather_cache(cache, rows), super().gather_cache(cache, rows.clamp(min=0) + 1)
        return tuple(part + nothing_of(*neighbours).to(part.dtype) for part in parts)
