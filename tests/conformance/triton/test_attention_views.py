"""A layer's calls and device batches over the portable kernels: tensors that are not dense give the dense answer or an error."""

from __future__ import annotations

import os

import pytest

import hal
from hal.testing.suite.strides import check_forms
from tests.attention.helpers.views import SCENES, batch_call, step_call

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> hal.Device:
    monkeypatch.setenv("HAL_BACKEND", "cuda:triton")
    return hal.Device.from_arch("cuda:sm_90", torch_device="cpu")


@pytest.mark.parametrize("name", ["attend", "attend_mla"])
def test_the_tensors_of_a_layers_call_may_be_views(name: str, device: hal.Device) -> None:
    check_forms(step_call(SCENES[name], "mixed", device), ["every_second", "transposed"])


def test_the_tensors_of_a_device_batch_may_be_views(device: hal.Device) -> None:
    check_forms(batch_call(SCENES["attend"], "decodes", "slots", device), ["every_second", "transposed"])
