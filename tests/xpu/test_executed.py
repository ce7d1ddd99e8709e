"""The conformance suite on the kernels' compiled SPIR-V, executed on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("pyopencl", reason="compiled SPIR-V runs in an environment of its own: make test-xpu")

from hal import Device
from hal.common.backends.registry import find_backend
from hal.common.triton.launch import Launch
from hal.testing import SMALL, Case, ConformanceError, conformance_cases
from hal.testing.proof import Prove

from .helpers.executor import CompiledLauncher, Runtime

PORTABLE, ARCH = "xpu:triton", "pvc"
CASES = list(conformance_cases(find_backend(PORTABLE), SMALL))


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime(ARCH)


def open_backend(launcher: CompiledLauncher):
    backend = find_backend(PORTABLE)(Device.from_arch(ARCH, torch_device="cpu"))
    backend.launcher = launcher
    return backend


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_compiled_spirv_does_what_the_contract_says(case: Case, runtime: Runtime, prove: Prove) -> None:
    prove(case, backend=PORTABLE, arch=ARCH, state="executed", means="compiled SPIR-V in Intel's OpenCL runtime for CPUs")
    case.check(open_backend(CompiledLauncher(runtime)))


def test_every_call_has_cases() -> None:
    assert {"rows_from_topk", "merge_states", "write_cache", "select_topk", "sparse_mla"} <= {case.call for case in CASES}


class IdleLauncher(CompiledLauncher):
    """Builds programs and runs none."""

    def run(self, launch: Launch) -> None:
        return


@pytest.mark.parametrize("call", ["rows_from_topk", "merge_states", "write_cache", "select_topk", "sparse_mla"])
def test_results_come_from_the_programs(call: str, runtime: Runtime) -> None:
    case = next(case for case in CASES if case.call == call)
    with pytest.raises(ConformanceError):
        case.check(open_backend(IdleLauncher(runtime)))
