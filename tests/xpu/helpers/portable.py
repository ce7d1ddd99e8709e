"""A module that any OpenCL runtime takes, made of one that is meant for the vendor's GPU driver."""

from __future__ import annotations

from dataclasses import replace

from hal.matrix.spirv import OP_CAPABILITY, OP_EXECUTION_MODE, OP_EXTENSION, Instruction, Module, read_text

# Attributes of kernels and vector compute: hints for the GPU's driver, without a meaning for what a kernel computes.
CAPABILITIES = (5892, 5619)
EXTENSIONS = ("SPV_INTEL_kernel_attributes", "SPV_INTEL_vector_compute")
EXECUTION_MODES = (5893,)


def without_hints(module: Module) -> Module:
    """The module without the capabilities, extensions and execution modes that a CPU's runtime refuses."""
    return replace(module, instructions=tuple(one for one in module.instructions if not _is_hint(one)))


def _is_hint(one: Instruction) -> bool:
    if one.opcode == OP_CAPABILITY:
        return one.words[0] in CAPABILITIES
    if one.opcode == OP_EXTENSION:
        return read_text(one.words) in EXTENSIONS
    return one.opcode == OP_EXECUTION_MODE and one.words[1] in EXECUTION_MODES
