"""How one attention module's projections divide by heads, read off its own forward.

A projection's outputs may lie in any order (query, key and value per head, in blocks, one key for all queries, per group of
queries): each belongs to the head whose query, key, value or gate depends on it, and a rank keeps those of its heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hal.common.contract.parallel import Parallel
from hal.config import LayerShape

from .hollow import Capture, Emitter, HollowRun
from .slices import block
from .supports import Supports, depends_on, find_supports, join_supports


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShare:
    """One rank's heads of a layer, out of all. kv is all of them where keys are shared by every head (latent, compressed)."""

    queries: range
    num_queries: int
    kv: range
    num_kv: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDivision:
    """What a rank keeps of one attention module, by linear layer: rows are outputs, columns are inputs.

    is_local: the module's forward works with this rank's heads alone; otherwise its layers look whole from outside and only
    multiply less. gathers: what attention answers is put together over ranks, because the module mixes heads afterwards.
    """

    rows: Mapping[str, tuple[int, ...]]
    columns: Mapping[str, tuple[int, ...]]
    is_local: bool
    gathers: bool


def share_heads(layer: LayerShape, parallel: Parallel) -> HeadShare:
    """This rank's heads: query heads in even blocks, and the KV heads that those read, kept by several ranks if need be."""
    rank, ranks = parallel.tp_rank, parallel.tp
    queries = block(layer.num_heads, rank, ranks)
    num_kv = layer.num_kv_heads if layer.kind == "attention" else 1
    if num_kv >= ranks:
        kv = block(num_kv, rank, ranks)
    else:
        own = rank * num_kv // ranks
        kv = range(own, own + 1)
    return HeadShare(queries=queries, num_queries=layer.num_heads, kv=kv, num_kv=num_kv)


def divide_attention(run: HollowRun, name: str, layer: LayerShape, share: HeadShare) -> AttentionDivision:
    """How a rank with these heads runs the module of this name; nothing is divided that the forward does not show to divide."""
    capture = run.captures[name]
    emitters = {key: emitter for key, emitter in run.under(name).items() if emitter.calls == 1}
    columns = _divide_columns(run, name, capture, emitters, share)
    units = _find_units(capture, emitters, layer, list(columns))
    touched = sorted(set().union(*units.values()) - set(units.get(SHARED, {})))
    rows = {key: kept for key in touched if (kept := _own_rows(key, units, share)) is not None}
    division = AttentionDivision(rows=rows, columns=columns, is_local=False, gathers=not columns)
    if columns and touched == sorted(rows) and _runs_locally(run, name, emitters, layer, share, division, units):
        return AttentionDivision(rows=rows, columns=columns, is_local=True, gathers=False)
    return division


Unit = tuple[str, int]
SHARED: Unit = ("every head", 0)


def _find_units(
    capture: Capture, emitters: Mapping[str, Emitter], layer: LayerShape, outs: Sequence[str]
) -> dict[Unit, Supports]:
    """By head: the outputs of every layer that its query or gate, or its key and value, depend on."""
    leaves = {key: emitter.leaf for key, emitter in emitters.items() if emitter.leaf is not None}
    query, key, value = capture.query, capture.key, capture.value
    if query is None or key is None or value is None:
        return {}
    units: dict[Unit, Supports] = {}
    for head in range(query.shape[1]):
        gates = [find_supports(_columns_of(emitters[out], head, query.shape[1]), leaves) for out in outs]
        units["query", head] = join_supports(find_supports(query[:, head], leaves), *gates)
    if layer.kind != "attention":
        units[SHARED] = join_supports(find_supports(key, leaves), find_supports(value, leaves))
    elif layer.owns_kv:
        for head in range(key.shape[1]):
            units["kv", head] = join_supports(find_supports(key[:, head], leaves), find_supports(value[:, head], leaves))
    return units


def _own_rows(key: str, units: Mapping[Unit, Supports], share: HeadShare) -> tuple[int, ...] | None:
    """The rank's outputs of one layer; None where one output serves several heads, or none."""
    supports = {unit: found[key] for unit, found in units.items() if key in found}
    if bool((torch.stack([rows.int() for rows in supports.values()]).sum(0) != 1).any()):
        return None
    own = {"query": share.queries, "kv": share.kv}
    kept = [rows for (kind, head), rows in supports.items() if head in own[kind]]
    return tuple(torch.stack(kept).any(0).nonzero().flatten().tolist()) if kept else None


def _divide_columns(
    run: HollowRun, name: str, capture: Capture, emitters: Mapping[str, Emitter], share: HeadShare
) -> dict[str, tuple[int, ...]]:
    """The inputs that the rank's heads make, of every layer that reads what attention answers; {} if one mixes heads."""
    answer = capture.answer
    output = run.called[name].output
    first = output[0] if isinstance(output, tuple) else output
    if answer is None or not isinstance(first, torch.Tensor) or depends_on(first, answer) is not None:
        return {}
    columns = {}
    for key, emitter in emitters.items():
        received = emitter.received
        if received is None or depends_on(received, answer) is None:
            continue
        width, rest = divmod(received.shape[-1], share.num_queries)
        if rest or not all(_is_of_head(emitter, answer, head) for head in range(share.num_queries)):
            return {}
        columns[key] = tuple(range(share.queries.start * width, share.queries.stop * width))
    return columns


def _columns_of(emitter: Emitter, head: int, num_heads: int) -> torch.Tensor:
    received = emitter.received
    if received is None:
        raise ValueError("a layer that was not called has no inputs")
    width = received.shape[-1] // num_heads
    return received[..., head * width : (head + 1) * width]


def _is_of_head(emitter: Emitter, answer: torch.Tensor, head: int) -> bool:
    gradient = depends_on(_columns_of(emitter, head, answer.shape[2]), answer)
    if gradient is None:
        return False
    found = (gradient.sum((0, 1, 3)) > 0).nonzero().flatten().tolist()
    return bool(found == [head])


def _runs_locally(
    run: HollowRun,
    name: str,
    emitters: Mapping[str, Emitter],
    layer: LayerShape,
    share: HeadShare,
    division: AttentionDivision,
    units: Mapping[Unit, Supports],
) -> bool:
    """Whether the module's forward, given layers of this rank's widths, attends with exactly this rank's heads."""
    capture, called = run.captures[name], run.called[name]
    for key, kept in division.rows.items():
        emitters[key].resize(len(kept))
    capture.num_heads = len(share.queries)
    try:
        with torch.enable_grad():
            run.module.get_submodule(name)(*called.args, **called.keywords)
        if not _has_own_heads(capture, emitters, layer, share, division):
            return False
        local = _find_units(capture, emitters, layer, list(division.columns))
        return all(_same_rows(key, kept, units, local, share) for key, kept in division.rows.items())
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    finally:
        capture.num_heads = share.num_queries
        for key in division.rows:
            emitters[key].resize(emitters[key].sizes.outputs)


def _has_own_heads(
    capture: Capture, emitters: Mapping[str, Emitter], layer: LayerShape, share: HeadShare, division: AttentionDivision
) -> bool:
    query, key, answer = capture.query, capture.key, capture.answer
    if query is None or key is None or answer is None or query.shape[1] != len(share.queries):
        return False
    if layer.kind == "attention" and layer.owns_kv and key.shape[1] != len(share.kv):
        return False
    return all(
        _width(emitters[out]) == len(kept) and all(_is_of_head(emitters[out], answer, head) for head in range(len(share.queries)))
        for out, kept in division.columns.items()
    )


def _same_rows(
    key: str, kept: Sequence[int], units: Mapping[Unit, Supports], local: Mapping[Unit, Supports], share: HeadShare
) -> bool:
    """Whether each local head depends on those of the kept outputs that its head of the whole module depends on."""
    own = [("query", head) for head in share.queries] + [("kv", head) for head in share.kv]
    here = [("query", head) for head in range(len(share.queries))] + [("kv", head) for head in range(len(share.kv))]
    nothing = torch.zeros(len(kept), dtype=torch.bool)
    for whole_unit, local_unit in zip(own, here, strict=True):
        whole = units.get(whole_unit, {}).get(key)
        expected = nothing if whole is None else whole[list(kept)]
        if not torch.equal(local.get(local_unit, {}).get(key, nothing), expected):
            return False
    return True


def _width(emitter: Emitter) -> int:
    return 0 if emitter.received is None else emitter.received.shape[-1]
