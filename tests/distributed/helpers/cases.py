"""What groups of ranks run: models, how ranks share them, and the steps of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hal
from hal.config import LayerShape
from tests.attention.helpers.shapes import gqa, mla, sparse

Step = list[tuple[int, int]]

# One KV head, so that any number of ranks may divide the query heads.
GQA = (
    gqa(0, num_kv_heads=1),
    gqa(1, num_kv_heads=1, window=6, sink=True),
    gqa(2, num_kv_heads=1, softcap=1.5, window=5, kv_source=0),
    gqa(3, num_kv_heads=1, chunk=8),
    gqa(4, num_kv_heads=1, causal=False),
    gqa(5, num_kv_heads=1, causal=False, window=4),
)
MLA = (mla(0, num_heads=4, num_kv_heads=4), mla(1, num_heads=4, num_kv_heads=4, sink=True, window=7))
SPARSE = (
    sparse(0, num_heads=4, num_kv_heads=4, sink=True),
    sparse(1, num_heads=4, num_kv_heads=4, owns=False),
    sparse(2, num_heads=4, num_kv_heads=4),
)
LAYERS: dict[str, tuple[LayerShape, ...]] = {"gqa": GQA, "mla": MLA, "sparse": SPARSE}

# Prompts below the number of ranks and above a page of all ranks, their continuation, decodes, short extends, in any order.
MIXED: list[Step] = [
    [(0, 1), (1, 17), (2, 2), (3, 9)],
    [(1, 6), (0, 1), (2, 1)],
    [(0, 1), (1, 1), (2, 1), (3, 1)],
    [(3, 3), (0, 2), (1, 1), (2, 3)],
    [(2, 5), (0, 1), (3, 0), (1, 1)],
    [],
    [(4, 1)],
    [(4, 1), (0, 11)],
]
# The same kinds of steps, decodes first.
ORDERED: list[Step] = [
    [(0, 3), (1, 17)],
    [(0, 1), (1, 1)],
    [(0, 1), (1, 1), (2, 9), (3, 1)],
    [(0, 1), (3, 1), (2, 4)],
    [(0, 2), (1, 3)],
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Some layers over dcp ranks: of which query heads are divided over tp, in runs of `interleave` tokens.

    known: batches come from device tensors, of which the host knows this much. padding: (tokens, requests) of every step.
    """

    kind: str
    dcp: int
    tp: int
    interleave: int
    steps: list[Step] = field(default_factory=lambda: MIXED)
    known: str | None = None
    padding: tuple[int, int] | None = None
    plan: dict[str, Any] = field(default_factory=dict)

    def batch(self) -> dict[str, int]:
        """What every batch is made with."""
        if self.padding is None:
            return {}
        tokens, requests = self.padding
        return {"num_tokens_padded": tokens, "num_reqs_padded": requests}


def _cases(ranks: int) -> dict[str, Case]:
    """By kind of layer: runs of one token, of a page and between; more than two ranks add nothing to how batches come."""
    cases = {}
    for kind in LAYERS:
        for interleave in (1, 4):
            cases[f"{kind}-own_heads-runs_of_{interleave}"] = Case(kind=kind, dcp=ranks, tp=ranks, interleave=interleave)
        cases[f"{kind}-same_heads-runs_of_2"] = Case(kind=kind, dcp=ranks, tp=1, interleave=2)
        usual = {"kind": kind, "dcp": ranks, "tp": ranks, "interleave": 2}
        cases[f"{kind}-drafts"] = Case(**usual, plan={"num_spec_tokens": 2})
        if ranks > 2:
            continue
        cases[f"{kind}-padded"] = Case(**usual, padding=(40, 6))
        cases[f"{kind}-bfloat16"] = Case(**usual, plan={"dtype": "bfloat16"})
        for known in ("bounds", "lengths"):
            cases[f"{kind}-from_device_{known}"] = Case(**usual, steps=ORDERED, known=known)
    return cases


CASES = {2: _cases(2), 4: _cases(4)}
# Four tensor-parallel ranks of which each pair shares the tokens of one of two KV heads, with heads of its own or the same.
CASES[4]["gqa-pairs_with_own_heads"] = Case(kind="gqa", dcp=2, tp=4, interleave=1)
CASES[4]["gqa-pairs_with_same_heads"] = Case(kind="gqa", dcp=2, tp=2, interleave=1)
LIMITS = hal.Limits(64, 6, 48, block_size=4)
