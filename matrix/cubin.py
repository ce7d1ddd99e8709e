"""Figures of a cubin, by the disassembler that comes with the compiler."""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import Any

from .figures import Figures, count_asked

_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_MATRIX = re.compile(r"(?:UTC)?[A-Z]G?MMA(?:\.|$)")
# Stores to the stack and to shared memory have names of their own.
_STORE = re.compile(r"(?:STG|UTMASTG|UBLKCP|REDG|ATOMG)(?:\.|$)")


def read_cubin(compiled: Any) -> Figures:
    """The figures of a kernel that triton.compile made; RuntimeError where the disassembler says nothing of it.

    Spills are bytes of stack: the LOCAL figure beside it stays 0 even where registers spill.
    """
    text = _disassemble(compiled.asm["cubin"])
    usage = dict(re.findall(r"\b(REG|STACK):(\d+)", text))
    opcodes = _OPCODE.findall(text)
    if usage.keys() != {"REG", "STACK"} or not opcodes:
        raise RuntimeError(f"cuobjdump gave {sorted(usage)} and {len(opcodes)} instructions; expected REG, STACK and some")
    asked_matrix, asked_stores = count_asked(compiled.asm["ttir"])
    return Figures(
        shared_bytes=compiled.metadata.shared,
        registers=int(usage["REG"]),
        spills=int(usage["STACK"]),
        matrix=sum(bool(_MATRIX.match(name)) for name in opcodes),
        stores=sum(bool(_STORE.match(name)) for name in opcodes),
        asked_matrix=asked_matrix,
        asked_stores=asked_stores,
    )


def _disassemble(cubin: bytes) -> str:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
