"""Launches of the portable kernels, run as compiled SPIR-V by an OpenCL runtime on the CPU."""

from __future__ import annotations

import ctypes
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl
import triton

from hal.common.triton.launch import Launch, Launcher, LaunchKey
from hal.common.triton.specialisation import Specialisation, specialise
from hal.matrix.fleet import read_fleet
from hal.matrix.spirv import find_kernel, parse_module
from hal.matrix.targets import find_arch, make_target

from .portable import without_hints

_NUMBERS = {"i32": np.int32, "i64": np.int64, "fp32": np.float32}
# The CPU has neither the matrix unit nor the block loads and stores that go with it.
_PLAIN = {
    "sub_group_sizes": [16, 32],
    "has_fp64": True,
    "has_subgroup_matrix_multiply_accumulate": False,
    "has_subgroup_matrix_multiply_accumulate_tensor_float32": False,
    "has_subgroup_2d_block_io": False,
    "has_bfloat16_conversions": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A kernel that can be enqueued. width: work items of a program of the grid; shared_bytes: of local memory."""

    specialisation: Specialisation
    kernel: Any
    width: int
    shared_bytes: int


class Runtime:
    """The CPU as an OpenCL device, with every program built for it so far."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        (proof,) = [proof for proof in read_fleet() if arch in proof.archs]
        assert proof.compiler is not None
        self.target = make_target(proof.compiler, find_arch(proof.platform, arch), _PLAIN)
        (device,) = [one for platform in cl.get_platforms() for one in platform.get_devices(cl.device_type.CPU)]
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.programs: dict[LaunchKey, Program] = {}

    def find_program(self, specialisation: Specialisation) -> Program:
        """The program of a specialisation, built at its first use."""
        if specialisation.key not in self.programs:
            self.programs[specialisation.key] = self._build(specialisation)
        return self.programs[specialisation.key]

    def _build(self, specialisation: Specialisation) -> Program:
        compiled = triton.compile(specialisation.to_source(), target=self.target, options=specialisation.options)
        module = without_hints(parse_module(compiled.asm["spv"]))
        with warnings.catch_warnings():
            # The runtime tells how it vectorised each kernel, which counts as a warning.
            warnings.simplefilter("ignore", cl.CompilerWarning)
            built = cl.Program(self.context, module.to_bytes()).build()
        metadata = compiled.metadata
        return Program(
            specialisation=specialisation,
            kernel=cl.Kernel(built, find_kernel(module)),
            width=metadata.num_warps * metadata.threads_per_warp,
            shared_bytes=metadata.shared,
        )

    def run(self, program: Program, values: dict[str, Any], grid: tuple[int, ...]) -> None:
        """Run a program over a grid and wait; tensors are read and written where they lie."""
        arguments = [_argument(kind, values[name]) for name, kind in _arguments(program.specialisation)]
        if program.shared_bytes:
            arguments.append(cl.LocalMemory(program.shared_bytes))
        program.kernel.set_args(*arguments)
        columns, rows, layers = (*grid, 1, 1)[:3]
        size, group = (columns * program.width, rows, layers), (program.width, 1, 1)
        cl.enqueue_nd_range_kernel(self.queue, program.kernel, size, group)
        self.queue.finish()


class CompiledLauncher(Launcher):
    """A launcher whose launches run compiled, in the CPU's memory."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.arch)
        self.runtime = runtime

    def run(self, launch: Launch) -> None:
        if 0 in launch.grid:
            return
        program = self.runtime.find_program(specialise(launch, self.arch))
        values = {**launch.tensors, **launch.tables, **launch.strides, **launch.numbers}
        self.runtime.run(program, values, launch.grid)


def _arguments(specialisation: Specialisation) -> list[tuple[str, str]]:
    """(name, type) of what is passed, in the kernel's order."""
    names = specialisation.load_kernel().arg_names
    return [(name, specialisation.signature[name]) for name in names if specialisation.signature[name] != "constexpr"]


def _argument(kind: str, value: Any) -> Any:
    if not kind.startswith("*"):
        return _NUMBERS[kind](value)
    address = value.data_ptr()
    # Fine-grained system memory: a pointer of the host is one of the device, whatever lies around what it points at.
    return cl.SVM((ctypes.c_char * 1).from_address(address)) if address else None
