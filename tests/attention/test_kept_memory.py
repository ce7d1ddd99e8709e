"""What an opened attention keeps beside its caches is what its plan said that it would."""

from __future__ import annotations

import pytest
import torch

import hal
from hal.config import read_shape

from .helpers.shapes import gqa, mla, model, sparse

COUNTERS = 64
"""Bytes of the few single numbers that count what only a device can see."""


def measure_kept(plan: hal.Plan, num_blocks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of all that opening a plan makes by the calls that make tensors which last."""
    made: list[torch.Tensor] = []
    for name in ("zeros", "full", "zeros_like", "ones", "empty"):
        real = getattr(torch, name)

        def make(*args, real=real, **kwargs) -> torch.Tensor:
            made.append(real(*args, **kwargs))
            return made[-1]

        monkeypatch.setattr(torch, name, make)
    plan.open(num_blocks=num_blocks)
    monkeypatch.undo()
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in made}
    return sum(storages.values()) - num_blocks * plan.page_bytes


SHAPES = {
    "gqa": model(gqa(0), gqa(1)),
    "windows": model(gqa(0), gqa(1, window=4)),
    "mla": model(mla(0), mla(1, window=4)),
    "sparse": model(sparse(0), sparse(1, owns=False), sparse(2, topk=9)),
    "compressed": read_shape(
        {
            "model_type": "made_up",
            "hidden_size": 64,
            "vocab_size": 100,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "qk_rope_head_dim": 8,
            "compress_ratios": [0, 4, 16],
            "sliding_window": 16,
            "index_topk": 4,
            "index_n_heads": 16,
            "index_head_dim": 16,
        }
    ),
}
LIMITS = [hal.Limits(256, 16, 512), hal.Limits(100, 3, 7), hal.Limits(1000, 1, 1)]


@pytest.mark.parametrize("limits", LIMITS, ids=["wide", "odd", "single"])
@pytest.mark.parametrize("config", SHAPES)
def test_a_plan_counts_what_is_kept(config: str, limits: hal.Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = hal.plan(SHAPES[config], "cpu", limits=limits)
    planned = sum(buffer.nbytes for buffer in plan.buffers if not buffer.transient)
    assert 0 <= measure_kept(plan, 2, monkeypatch) - planned <= COUNTERS
