"""Engines whose requests have a past, by the kind of their layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import hal

from .engine import Engine
from .gqa_run import run_step
from .mla_run import bind
from .mla_run import run_step as run_mla_step
from .shapes import gqa, mla, model, sparse

PAGE, BLOCKS = 4, 64
PAST = [(0, 21), (1, 13), (2, 6)]
SHAPES = {
    "gqa": model(gqa(0), gqa(1, window=6), gqa(2, chunk=8), gqa(3, softcap=1.5, sink=True), gqa(4, causal=False)),
    "window": model(gqa(0, window=6), gqa(1, window=9)),
    "chunk": model(gqa(0, chunk=8), gqa(1, chunk=12)),
    "mla": model(mla(0)),
    "sparse": model(sparse(0, topk=4), sparse(1, topk=4, owns=False)),
}


def on_device(batch: hal.Batch, table: np.ndarray, **changes: Any) -> Any:
    queries, lengths = batch.query_lens.tolist(), batch.seq_lens.tolist()
    arguments = {
        "query_start_loc": torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "block_tables": torch.from_numpy(table),
        "num_tokens": sum(queries),
        "max_query_len": max(queries),
        "max_seq_len": max(lengths),
        "query_lens": queries,
        "seq_lens_upper": lengths,
    }
    return hal.Batch.from_device(**(arguments | changes))


def make_engine(kind: str) -> tuple[Engine, Callable[..., Any]]:
    """An engine whose three requests have a past, and what runs a step of it against the definition."""
    engine = Engine(SHAPES[kind], dtype="float64", num_blocks=BLOCKS)
    run: Callable[..., Any] = run_step
    if SHAPES[kind].is_mla:
        weights = bind(engine)

        def run(engine: Engine, step: Any, **arguments: Any) -> Any:
            return run_mla_step(engine, weights, step, **arguments)

    run(engine, PAST)
    return engine, run
