"""Tensors of an Attention's calls and of device batches that are not dense: the dense answer, or a typed error."""

from __future__ import annotations

import pytest

from hal.testing.suite.strides import check_call

from .helpers.engine import this_cpu
from .helpers.views import SCENES, STEPS, batch_call, count_tensors, step_call

KNOWN = ("no_slots", "slots", "lengths")
BATCHED = ("attend", "attend_mla", "attend_mla-index", "attend_compressed")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", SCENES)
def test_every_tensor_of_a_layers_call_may_be_any_view(name: str, step: str) -> None:
    call = step_call(SCENES[name], step, this_cpu())
    assert count_tensors(call) > 3
    check_call(call)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", BATCHED)
def test_every_tensor_of_a_device_batch_may_be_any_view(name: str, step: str, known: str) -> None:
    check_call(batch_call(SCENES[name], step, known, this_cpu()))
