"""A library that plans per step does so in every build(), into buffers of its own that never move."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

import hal
from hal.common.backends import registry
from hal.common.contract.buffer import Buffer
from hal.testing import ReferenceBackend

from .helpers.shapes import gqa, model

LIMITS = hal.Limits(64, 3, 16, block_size=4)


class Planning(ReferenceBackend):
    """Notes the lengths of each step in a buffer of one entry per request."""

    name = "cpu:planning"

    @classmethod
    def list_workspaces(cls, limits: hal.Limits) -> tuple[Buffer, ...]:
        return (Buffer(name="lengths", shape=(limits.max_num_seqs,), dtype="int32"),)

    def prepare_step(self, step: hal.StepMetadata, buffers: Mapping[str, torch.Tensor]) -> None:
        self.buffers = buffers
        buffers["lengths"][: step.num_reqs] = step.seq_lens[: step.num_reqs]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> hal.Plan:
    registry.backends()
    monkeypatch.setattr(registry._registry, "backends", dict(registry._registry.backends))
    hal.register_backend(Planning)
    return hal.plan(model(gqa()), "cpu", limits=LIMITS, dtype="float64", backend="cpu:planning")


def test_the_plan_counts_the_buffers(plan: hal.Plan) -> None:
    (buffer,) = [buffer for buffer in plan.buffers if buffer.name == "cpu:planning: lengths"]
    plain = hal.plan(plan.shape, "cpu", limits=LIMITS, dtype="float64")
    assert plan.workspace_bytes == plain.workspace_bytes + buffer.nbytes == plain.workspace_bytes + 12


def test_every_build_prepares_the_step_in_place(plan: hal.Plan) -> None:
    attention = plan.open(16)
    attention.build(hal.Batch([5, 1], [5, 9], [[0, 1, 2], [3, 4, 5]]))
    (backend,) = [backend for backend, _ in attention._workspaces if isinstance(backend, Planning)]
    lengths = backend.buffers["lengths"]
    assert lengths.tolist() == [5, 9, 0]
    address = lengths.data_ptr()
    attention.build(hal.Batch([1], [6], [[0, 1]]))
    assert (lengths.tolist()[0], backend.buffers["lengths"].data_ptr()) == (6, address)
    attention.build_for_capture(3, 3)
    assert lengths.tolist() == [1, 1, 1]
