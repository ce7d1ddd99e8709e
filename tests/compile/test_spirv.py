"""SPIR-V as words: what is well formed, and what is counted in it."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.matrix.spirv import MAGIC, Instruction, Module, find_kernel, parse_module, read_spirv, read_text

HEADER = (MAGIC, 0x00010400, 0, 100, 0)
GLOBAL, LOCAL = 5, 4
TYPE_GLOBAL, TYPE_LOCAL, POINTER_GLOBAL, POINTER_LOCAL, CALLEE = 10, 11, 20, 21, 30


def text(value: str) -> tuple[int, ...]:
    raw = value.encode() + b"\0"
    raw += b"\0" * (-len(raw) % 4)
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def make_module(*body: Instruction, name: str = "attend", model: int = 6) -> Module:
    head = (
        Instruction(15, (model, 1, *text(name))),
        Instruction(5, (CALLEE, *text("_Z44intel_sub_group_bf16_bf16_matrix_mad_k16"))),
        Instruction(32, (TYPE_GLOBAL, GLOBAL, 2)),
        Instruction(32, (TYPE_LOCAL, LOCAL, 2)),
        Instruction(67, (TYPE_GLOBAL, POINTER_GLOBAL, 3, 4)),
        Instruction(67, (TYPE_LOCAL, POINTER_LOCAL, 3, 4)),
    )
    return Module(header=HEADER, instructions=(*head, *body))


def compiled(module: Module, name: str = "attend") -> SimpleNamespace:
    return SimpleNamespace(asm={"spv": module.to_bytes(), "ttir": ""}, metadata=SimpleNamespace(shared=64, name=name))


def test_stores_to_global_memory_and_matrix_calls_are_counted() -> None:
    stores = [Instruction(62, (pointer, 5)) for pointer in (POINTER_GLOBAL, POINTER_LOCAL, POINTER_GLOBAL)]
    calls = [Instruction(57, (1, result, CALLEE)) for result in (40, 41, 42)]
    figures = read_spirv(compiled(make_module(*stores, *calls)))
    assert (figures.stores, figures.matrix, figures.shared_bytes) == (2, 3, 64)
    assert figures.registers is figures.spills is None


def test_an_atomic_update_of_global_memory_is_a_store() -> None:
    """OpAtomicOr (241) says the type and the number of its result before the pointer; OpAtomicLoad (227) stores nothing."""
    updates = [Instruction(241, (6, 70 + at, pointer, 1, 0, 5)) for at, pointer in enumerate((POINTER_GLOBAL, POINTER_LOCAL))]
    load = Instruction(227, (6, 80, POINTER_GLOBAL, 1, 0))
    assert read_spirv(compiled(make_module(*updates, load))).stores == 1


def test_a_decoration_of_a_pointer_type_makes_no_pointer() -> None:
    decorated = Instruction(71, (TYPE_GLOBAL, 44, 4))
    assert read_spirv(compiled(make_module(decorated, Instruction(62, (44, 5))))).stores == 0


def test_another_kernels_name_is_refused() -> None:
    with pytest.raises(ValueError, match="the module's kernel is 'attend'; expected 'merge'"):
        read_spirv(compiled(make_module(), "merge"))


def test_an_entry_point_that_is_no_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one kernel"):
        find_kernel(make_module(model=5))


MALFORMED = {
    "empty": (b"", "0 bytes"),
    "half_a_word": (b"\0" * 21, "21 bytes"),
    "magic": (struct.pack("<5I", 1, *HEADER[1:]), "magic 0x1"),
    "version": (struct.pack("<5I", MAGIC, 0x20000, 0, 1, 0), "version 0x20000"),
    "no_length": (struct.pack("<6I", *HEADER, 17), "instruction 17 at word 5 has 0 words"),
    "past_the_end": (struct.pack("<6I", *HEADER, 3 << 16 | 17), "has 3 words; 1 are left"),
}


@pytest.mark.parametrize(("binary", "said"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_module_is_refused(binary: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_module(binary)


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.lists(st.integers(0, 2**32 - 1), max_size=5))))
def test_a_module_survives_its_binary(body: list[tuple[int, list[int]]]) -> None:
    module = Module(header=HEADER, instructions=tuple(Instruction(opcode, tuple(words)) for opcode, words in body))
    assert parse_module(module.to_bytes()) == module


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_text_ends_at_its_zero_byte(value: str) -> None:
    assert read_text((*text(value), 7)) == value
