"""The conformance suite on the three portable backends, in Triton's interpreter."""

from __future__ import annotations

import os
from importlib.metadata import version

import pytest

from hal import Device
from hal.common.backends.registry import find_backend
from hal.testing import SMALL, Case, conformance_cases
from hal.testing.proof import Prove

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)

TARGETS = {"cuda:triton": "cuda:sm_90", "rocm:triton": "rocm:gfx942", "xpu:triton": "xpu:pvc"}
# How bytes are read has nothing to do with masks, nor with the platform but for the encoding, which is another on gfx942.
MASKS = ("window1", "window4", "window16", "chunk", "softcap", "non_causal", "scale1")
FEW = {
    "rocm:triton": ("mixed", "unseen", "cache"),
    "xpu:triton": ("page16-mixed-twice", "cache-kv_fp8", "cache-fp8_ds_mla-page16"),
}


def is_needed(name: str, case: Case) -> bool:
    """Whether a case says something that no other does."""
    if "fp8" not in case.id:
        # Nor have ranges, whatever is stored.
        return "key_ranges" not in case.id or name not in FEW or "mixed" in case.id
    is_masked = case.call == "paged_attention" and any(mask in case.id for mask in MASKS)
    return not is_masked and any(word in case.id for word in FEW.get(name, ("",)))


CASES = [(name, case) for name in TARGETS for case in conformance_cases(find_backend(name), SMALL) if is_needed(name, case)]


@pytest.mark.parametrize(("name", "case"), [pytest.param(name, case, id=f"{name}-{case.id}") for name, case in CASES])
def test_a_portable_backend_does_what_the_contract_says_in_the_interpreter(name: str, case: Case, prove: Prove) -> None:
    device = Device.from_arch(TARGETS[name], torch_device="cpu")
    prove(case, backend=name, arch=device.arch, state="emulated", means=f"the interpreter of triton {version('triton')}")
    case.check(find_backend(name)(device))
