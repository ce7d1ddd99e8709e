"""SPIR-V as words: whether a module is well formed, and its figures."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .figures import Figures, count_asked

MAGIC = 0x07230203
OP_NAME, OP_EXTENSION, OP_ENTRY_POINT, OP_EXECUTION_MODE, OP_CAPABILITY = 5, 10, 15, 16, 17
OP_TYPE_POINTER, OP_FUNCTION, OP_FUNCTION_CALL, OP_STORE = 32, 54, 57, 62
# From OpAtomicExchange to OpAtomicXor: the type and the number of a result, then the pointer.
ATOMIC_UPDATES = range(229, 243)
# Sub-group matrix multiply-accumulate, and the block store of the same unit, as calls of built-in functions.
MATRIX_CALL, STORE_CALL = ("matrix_mad", "MatrixMultiplyAccumulate"), ("block_write", "BlockStore")
_KERNEL_MODEL, _GLOBAL_CLASS = 6, 5
_VERSIONS = tuple(0x10000 | minor << 8 for minor in range(7))
_HEADER_WORDS = 5
# Names, decorations and declarations of types: their second word is no type of a result.
_NO_RESULT = frozenset({5, 6, 71, 72, 332, *range(19, 40)})


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its number, and the words after the first."""

    opcode: int
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module's header words and its instructions, in order."""

    header: tuple[int, ...]
    instructions: tuple[Instruction, ...]

    def of(self, opcode: int) -> Iterator[Instruction]:
        """The instructions of a number."""
        return (one for one in self.instructions if one.opcode == opcode)

    def to_bytes(self) -> bytes:
        """The module as a binary."""
        words = list(self.header)
        for one in self.instructions:
            words += [(len(one.words) + 1) << 16 | one.opcode, *one.words]
        return struct.pack(f"<{len(words)}I", *words)


def parse_module(binary: bytes) -> Module:
    """The module in a binary; ValueError says what is malformed: the header, or an instruction that ends past the end."""
    if len(binary) % 4 or len(binary) < 4 * _HEADER_WORDS:
        raise ValueError(f"{len(binary)} bytes are no SPIR-V module: expected whole words, {_HEADER_WORDS} at least")
    words = struct.unpack(f"<{len(binary) // 4}I", binary)
    if words[0] != MAGIC or words[1] not in _VERSIONS:
        raise ValueError(f"the header has magic {words[0]:#x} and version {words[1]:#x}; expected {MAGIC:#x} and 1.0 to 1.6")
    return Module(header=words[:_HEADER_WORDS], instructions=tuple(_split(words)))


def _split(words: Sequence[int]) -> Iterator[Instruction]:
    at = _HEADER_WORDS
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        if not 0 < length <= len(words) - at:
            raise ValueError(f"instruction {opcode} at word {at} has {length} words; {len(words) - at} are left")
        yield Instruction(opcode, tuple(words[at + 1 : at + length]))
        at += length


def read_text(words: Sequence[int]) -> str:
    """The text that starts at the first word and ends at a zero byte."""
    return struct.pack(f"<{len(words)}I", *words).partition(b"\0")[0].decode()


def find_kernel(module: Module) -> str:
    """The name of the one kernel; ValueError where there is none, another kind of entry point, or several."""
    entries = [(one.words[0], read_text(one.words[2:])) for one in module.of(OP_ENTRY_POINT)]
    if len(entries) != 1 or entries[0][0] != _KERNEL_MODEL:
        raise ValueError(f"the module has the entry points {entries}; expected one kernel")
    return entries[0][1]


def read_spirv(compiled: Any) -> Figures:
    """The figures of a kernel that triton.compile made; ValueError where the module is malformed or names another kernel.

    Registers and spills are decided by the device's own compiler, so they are not known.
    """
    module = parse_module(compiled.asm["spv"])
    name = find_kernel(module)
    if name != compiled.metadata.name:
        raise ValueError(f"the module's kernel is {name!r}; expected {compiled.metadata.name!r}")
    asked_matrix, asked_stores = count_asked(compiled.asm["ttir"])
    return Figures(
        shared_bytes=compiled.metadata.shared,
        registers=None,
        spills=None,
        matrix=_count_calls(module, MATRIX_CALL),
        stores=_count_stores(module) + _count_calls(module, STORE_CALL),
        asked_matrix=asked_matrix,
        asked_stores=asked_stores,
    )


def _count_calls(module: Module, parts: Sequence[str]) -> int:
    names = {one.words[0]: read_text(one.words[1:]) for one in module.of(OP_NAME)}
    called = (names.get(one.words[2], "") for one in module.of(OP_FUNCTION_CALL))
    return sum(any(part in name for part in parts) for name in called)


def _count_stores(module: Module) -> int:
    """Stores and atomic updates through pointers to global memory, known by the type of the instruction that made them."""
    types = {one.words[0] for one in module.of(OP_TYPE_POINTER) if one.words[1] == _GLOBAL_CLASS}
    made = (one.words for one in module.instructions if one.opcode not in _NO_RESULT and len(one.words) > 1)
    pointers = {words[1] for words in made if words[0] in types}
    stores = sum(one.words[0] in pointers for one in module.of(OP_STORE))
    return stores + sum(one.opcode in ATOMIC_UPDATES and one.words[2] in pointers for one in module.instructions)
