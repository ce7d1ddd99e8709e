"""The calls that the CPU backend refuses, on the portable kernels: a typed error before any address is worked out."""

from __future__ import annotations

import os

import pytest

from hal import Device, HalError
from hal.common.backends.registry import find_backend
from tests.conformance.helpers import bad_calls as on_cpu

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)


@pytest.mark.parametrize("name", on_cpu.CASES)
def test_portable_kernels_refuse_what_does_not_go_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    portable = find_backend("cuda:triton")(Device.from_arch("cuda:sm_90", torch_device="cpu"))
    monkeypatch.setattr(on_cpu, "CPU", portable)
    with pytest.raises(HalError):
        on_cpu.CASES[name][0]()
