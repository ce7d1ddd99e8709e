"""Batches in their device form, with more or less of them known to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import hal

LIMITS = hal.Limits(64, 8, 48, block_size=4)
BLOCKS = 128
KNOWN = ("bounds", "decodes", "lengths")


def on_device(queries: list[int], lengths: list[int], tables: np.ndarray, known: str, **changes: Any) -> Any:
    """The device form of a batch, with more or less of it known to the host."""
    hints: dict[str, Any] = {"decodes": {"num_decodes": queries.count(1)}}.get(known, {})
    if known == "lengths":
        hints = {"query_lens": queries, "seq_lens_upper": lengths}
    sizes = {"num_tokens": sum(queries), "max_query_len": max(queries), "max_seq_len": max(lengths)}
    return hal.Batch.from_device(
        torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        torch.from_numpy(tables),
        **{**sizes, **hints, **changes},
    )


def make_tables(count: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(BLOCKS)[: count * 16].reshape(count, 16).astype(np.int32)
