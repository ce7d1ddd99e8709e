"""Cases of varlen_attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.call_values import VarlenBatch
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.masking import CAUSAL, Masking
from hal.testing import reference
from hal.testing.case import Case, Sizes, describe
from hal.testing.cases import BATCHES, DECODE, MIXED, BatchCase, start_loc
from hal.testing.storage import make_generator, poisoned, random_tensor, torch_dtype

from .placement import move_tensors, place_of, spread_rows
from .results import check_attention

SPARE_KEYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenCase:
    """One call of varlen_attention; the batch's seq_lens are the key counts.

    selects: how many keys each query is limited to. first_key: the id of every request's first key, where ids are given.
    """

    dtype: str
    batch: BatchCase
    heads: int
    kv_heads: int
    widths: tuple[int, int]
    note: str = ""
    softmax_scale: float = 0.3
    masking: Masking = CAUSAL
    need_lse: bool = True
    gives_out: bool = True
    spreads_rows: bool = False
    selects: int | None = None
    first_key: int | None = None

    @property
    def id(self) -> str:
        """Readable, and unique within a backend's suite."""
        return describe("varlen_attention", self.dtype, self.batch.id, self.note)


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """Every case of varlen_attention that the declaration calls for."""
    for spec in _specs(capabilities, sizes):
        yield Case(call="varlen_attention", id=spec.id, check=partial(check_varlen, spec))


def _specs(capabilities: Capabilities, sizes: Sizes) -> Iterator[VarlenCase]:
    heads, kv_heads = sizes.heads[0]
    usual = VarlenCase(
        dtype=sizes.dtype,
        batch=MIXED,
        heads=heads,
        kv_heads=kv_heads,
        widths=sizes.widths[0],
        need_lse=capabilities.lse,
    )
    for dtype in sizes.dtypes:
        every = sizes.profile.crossed or dtype == sizes.dtype
        yield from (replace(usual, dtype=dtype, batch=batch) for batch in (BATCHES if every else BATCHES[:1]))
    for heads, kv_heads in sizes.heads[1:]:
        yield replace(usual, heads=heads, kv_heads=kv_heads, note=f"{heads}heads_on_{kv_heads}")
    for widths in sizes.widths[1:]:
        yield replace(usual, widths=widths, note=f"widths{widths[0]}_{widths[1]}")
    yield replace(usual, note="own_out", gives_out=False)
    yield replace(usual, note="no_lse", need_lse=False)
    yield replace(usual, note="strided_rows", spreads_rows=True)
    for case in (usual, replace(usual, batch=DECODE)):
        yield from _vary_options(case, capabilities)


def _vary_options(usual: VarlenCase, capabilities: Capabilities) -> Iterator[VarlenCase]:
    if capabilities.window:
        yield from (replace(usual, masking=Masking(window=window), note=f"window{window}") for window in (1, 4, 1000))
    if capabilities.chunk:
        yield from (replace(usual, masking=Masking(chunk=chunk), note=f"chunk{chunk}") for chunk in (1, 6))
    if capabilities.softcap:
        yield replace(usual, masking=Masking(softcap=1.5), softmax_scale=1.0, note="softcap1.5")
    if capabilities.non_causal:
        yield replace(usual, masking=Masking(causal=False), note="non_causal")
    if capabilities.masked_varlen:
        yield from (replace(usual, selects=count, note=f"selected{count}") for count in (0, 3, 64))
        yield replace(usual, selects=6, first_key=17, note="selected6_from17")
    if capabilities.masked_varlen and capabilities.non_causal:
        yield replace(usual, selects=6, first_key=5, masking=Masking(causal=False), note="selected6_from5_non_causal")


def check_varlen(case: VarlenCase, backend: Backend) -> None:
    """Raise ConformanceError."""
    generator, where, dtype = make_generator(case.id), place_of(backend), torch_dtype(case.dtype)
    tokens, num_keys = case.batch.num_tokens, sum(case.batch.seq_lens)
    q = random_tensor(generator, tokens, case.heads, case.widths[0], dtype=case.dtype)
    k, v = (poisoned(num_keys + SPARE_KEYS, case.kv_heads, width, dtype=dtype) for width in case.widths)
    for keys in (k, v):
        keys[:num_keys] = random_tensor(generator, *keys[:num_keys].shape, dtype=case.dtype)
    ids, first_key = _choose_keys(case, generator)
    batch = VarlenBatch(
        q_start_loc=case.batch.query_start_loc,
        k_start_loc=start_loc(case.batch.seq_lens),
        max_query_len=case.batch.max_query_len,
        max_seq_len=case.batch.max_seq_len,
        selected=ids,
        first_key=first_key,
    )
    expected = reference.varlen_attention(q, k, v, batch, softmax_scale=case.softmax_scale, masking=case.masking)
    out = poisoned(tokens, case.heads, case.widths[1], dtype=dtype, device=where) if case.gives_out else None
    rows = [tensor.to(where) for tensor in (q, k, v)]
    if case.spreads_rows:
        rows = [spread_rows(tensor) for tensor in rows]
    check_attention(partial(_call, case, backend, rows, move_tensors(batch, where)), expected, out, dtype, case.need_lse)


def _call(
    case: VarlenCase, backend: Backend, rows: list[torch.Tensor], batch: VarlenBatch, out: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    q, k, v = rows
    return backend.varlen_attention(
        q, k, v, batch, softmax_scale=case.softmax_scale, masking=case.masking, need_lse=case.need_lse, out=out
    )


def _choose_keys(case: VarlenCase, generator: torch.Generator) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Distinct ids per query, some of them before the first key or past the last, then -1."""
    if case.selects is None:
        return None, None
    first = case.first_key or 0
    selected = torch.full((case.batch.num_tokens, case.selects + 2), -1, dtype=torch.int32)
    for token, (request, _) in enumerate(case.batch.positions):
        count = first + case.batch.seq_lens[request] + 4
        chosen = torch.randperm(count, generator=generator)[: case.selects]
        selected[token, : chosen.numel()] = chosen.to(torch.int32)
    if case.first_key is None:
        return selected, None
    return selected, torch.full((len(case.batch.seq_lens),), first, dtype=torch.int32)
