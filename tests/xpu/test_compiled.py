"""The kernels' SPIR-V for the GPU itself: figures within the arch's limits, and modules that are what their driver expects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyopencl", reason="the compiler for this platform needs an environment of its own: make test-xpu")

import triton

from hal import Device, Request
from hal.common.triton import specialisations
from hal.common.triton.specialisation import Specialisation
from hal.matrix import read_fleet
from hal.matrix.compile import compile_models, sample_models
from hal.matrix.spirv import OP_CAPABILITY, OP_EXECUTION_MODE, OP_EXTENSION, Module, find_kernel, parse_module, read_text
from hal.matrix.targets import find_arch, make_target

from .helpers.portable import CAPABILITIES, EXECUTION_MODES, EXTENSIONS, without_hints

(PROOF,) = [proof for proof in read_fleet() if proof.proof == "spirv"]
SUBGROUP_SIZE = 35
# Kernels with 8 to 64-bit numbers, sub-groups and their shuffles and reductions, and the vendor's bfloat16 and kernel attributes.
KNOWN_CAPABILITIES = {4, 5, 6, 7, 8, 11, 22, 39, 58, 63, 66, 67, 5619, 5892, 6115}
KNOWN_EXTENSIONS = {"SPV_INTEL_bfloat16_conversion", "SPV_INTEL_kernel_attributes", "SPV_INTEL_vector_compute"}


@pytest.mark.parametrize("arch", PROOF.archs)
def test_figures_are_within_the_archs_limits(arch: str) -> None:
    report = compile_models(sample_models(), [Device.from_arch(f"{PROOF.platform}:{arch}")])
    assert not report.absent
    assert [(row.kernel, row.faults) for row in report.rows if row.faults] == []
    multiplying = {row.kernel for row in report.rows if row.figures is not None and row.figures.matrix}
    assert multiplying == {"sparse:attend_rows", "attend:attend_keys", "scores:score_keys"}


def list_sources() -> Iterator[tuple[str, Specialisation]]:
    for name, shape in sample_models().items():
        request = Request(shape.layers[0], Device.from_arch(PROOF.archs[0]), "bfloat16")
        seen: set[str] = set()
        for one in specialisations(request):
            if one.name not in seen:
                yield f"{name}-{one.name}", one
                seen.add(one.name)


SOURCES = dict(list_sources())


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_module_is_well_formed(source: Specialisation) -> None:
    assert PROOF.compiler is not None
    target = make_target(PROOF.compiler, find_arch(PROOF.platform, PROOF.archs[0]))
    compiled = triton.compile(source.to_source(), target=target, options=source.options)
    module = parse_module(compiled.asm["spv"])
    assert find_kernel(module) == source.name.partition(":")[2]
    assert capabilities(module) <= KNOWN_CAPABILITIES
    assert extensions(module) <= KNOWN_EXTENSIONS
    sizes = [one.words[2] for one in module.of(OP_EXECUTION_MODE) if one.words[1] == SUBGROUP_SIZE]
    assert sizes == [compiled.metadata.threads_per_warp]
    assert sizes[0] in PROOF.compiler.properties["sub_group_sizes"]


def test_hints_are_all_that_is_removed() -> None:
    source = next(iter(SOURCES.values()))
    assert PROOF.compiler is not None
    target = make_target(PROOF.compiler, find_arch(PROOF.platform, PROOF.archs[0]))
    module = parse_module(triton.compile(source.to_source(), target=target, options=source.options).asm["spv"])
    plain = without_hints(module)
    assert capabilities(plain) == capabilities(module) - set(CAPABILITIES)
    assert extensions(plain) == extensions(module) - set(EXTENSIONS)
    assert not {one.words[1] for one in plain.of(OP_EXECUTION_MODE)} & set(EXECUTION_MODES)
    removed = {one.opcode for one in set(module.instructions) - set(plain.instructions)}
    assert removed == {OP_CAPABILITY, OP_EXTENSION, OP_EXECUTION_MODE}


def capabilities(module: Module) -> set[int]:
    return {one.words[0] for one in module.of(OP_CAPABILITY)}


def extensions(module: Module) -> set[str]:
    return {read_text(one.words) for one in module.of(OP_EXTENSION)}
