"""The header of one safetensors file: every tensor's name, type, shape and place, held against the file's own length."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit (safetensors' MAX_HEADER_SIZE)."""

AGAIN = "copy it again"

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""safetensors' names for the element types that torch computes with."""

PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
"""Element types narrower than a byte, which have no tensor of their own shape in torch."""

SURROGATE = re.compile("[\ud800-\udfff]")

PICKLES = (b"(dp", *(b"\x80" + bytes([protocol]) for protocol in range(2, 6)))
"""The first bytes of a pickled table in text, and of a pickle of the protocols that torch.save and Python write."""

OTHER_FORMATS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file it points to; run `git lfs pull` in the folder"),
    (b"GGUF", "a GGUF file under another name; hal reads safetensors alone"),
    (b"PK\x03\x04", "a pickle archive (torch.save, numpy) under another name; convert it with save_pretrained()"),
    *(
        (b"\x80" + bytes([protocol]), "a pickle under another name; convert it with save_pretrained()")
        for protocol in range(2, 6)
    ),
    (b"(dp", "a pickle under another name; convert it with save_pretrained()"),
    (b"\x93NUMPY", "a numpy array under another name; convert it with save_pretrained()"),
    (b"\x89HDF", "an HDF5 file under another name; convert it with save_pretrained()"),
    (b"\x1f\x8b", "a gzip archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "a zstandard archive; unpack it"),
    (b'{"', "a JSON text, most likely the error that a download ran into; download it again"),
    (b"<", "a web page, most likely the error that a download ran into; download it again"),
    (b"Entry not found", "a download's error message; download it again"),
)
"""What lies in the place of a safetensors file on users' disks, by its first bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor as its file's header declares it; dtype is safetensors' name ("BF16"), offset where its bytes begin."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The stored dtype. CheckpointError for one that torch has no element type for."""
        if self.dtype not in DTYPES:
            raise CheckpointError(f"{self.file}: {self.name!r} is stored as {self.dtype}; known: {', '.join(DTYPES)}")
        return DTYPES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return -(-math.prod(self.shape) * _bits(self.dtype) // 8)


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors that one safetensors file declares, in its order; no tensor data is read.

    CheckpointError, with what to do, for anything that is not a whole and consistent safetensors file: the header has to
    account for every byte of the file exactly once.
    """
    if os.path.exists(file) and not os.path.isfile(file):
        raise _damaged(file, "it is a folder, a pipe or a device, not a file")
    try:
        size = os.path.getsize(file)
        with open(file, "rb") as stream:
            start = stream.read(32)
            length = int.from_bytes(start[:8], "little")
            _check_start(file, start, length, size)
            stream.seek(8)
            text = stream.read(length)
    except OSError as error:
        raise CheckpointError(
            f"{file} is not a readable safetensors file: {error.strerror or error}; check its owner and mode"
        ) from error
    if len(text) < length:
        raise _damaged(file, f"it ended after {len(text):,} of the {length:,} bytes of its header, so something is writing to it")
    tensors, places = _read_entries(file, _parse(file, text), 8 + length)
    _check_places(file, places, size - 8 - length)
    return tensors


def _damaged(file: Path, fact: str) -> CheckpointError:
    return CheckpointError(f"{file} is not a readable safetensors file: {fact}; {AGAIN}")


def _check_start(file: Path, start: bytes, length: int, size: int) -> None:
    if size == 0:
        raise _damaged(file, "it is empty")
    for magic, what in OTHER_FORMATS:
        if start.startswith(magic) and not start[8:9] == b"{":
            raise CheckpointError(f"{file} is not a safetensors file but {what}")
    if not start.strip(b"\0"):
        raise _damaged(file, f"its {size:,} bytes begin with zeros only, so a download reserved its room and never filled it")
    if size < 8:
        raise _damaged(file, f"it has {size} bytes, and a header's length alone takes 8")
    if length > MAX_HEADER_BYTES:
        raise _damaged(
            file, f"its first 8 bytes promise a header of {length:,} bytes, and the format ends at {MAX_HEADER_BYTES:,}"
        )
    if 8 + length > size:
        raise _damaged(file, f"its header alone takes {8 + length:,} bytes, and the file has {size:,}")


def _parse(file: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        raise _damaged(file, f"its header is not UTF-8 text (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(file, f"its header is {str(header)[:40]!r}, not a table of tensors")
    return header


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is in it twice")
    return table


def is_text(name: str) -> bool:
    """Whether a name out of JSON can be written down again; half of a surrogate pair cannot."""
    return SURROGATE.search(name) is None


def _read_entries(file: Path, header: dict[str, Any], data: int) -> tuple[dict[str, StoredTensor], list[tuple[int, int, str]]]:
    tensors: dict[str, StoredTensor] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
                raise _damaged(file, "its __metadata__ is not a table of texts")
            continue
        if not is_text(name):
            raise _damaged(file, f"{name!a} in its header is not a name that can be written")
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if not isinstance(dtype, str) or not _are_sizes((*shape, begin, end)):
                raise TypeError
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(
                file, f"its header says {str(entry)[:120]} of {name!r}, not a type, a shape and two offsets"
            ) from error
        if dtype not in DTYPES and dtype not in PACKED_BITS:
            raise CheckpointError(f"{file}: {name!r} is stored as {dtype}; known: {', '.join((*DTYPES, *PACKED_BITS))}")
        tensor = StoredTensor(name=name, file=file, shape=shape, dtype=dtype, offset=data + begin)
        if end - begin != tensor.num_bytes:
            raise _damaged(
                file, f"{name!r} ({dtype} {list(shape)}) takes {tensor.num_bytes:,} bytes and is given {end - begin:,}"
            )
        tensors[name] = tensor
        places.append((begin, end, name))
    return tensors, places


def _are_sizes(values: Iterable[object]) -> bool:
    return all(type(value) is int and 0 <= value < 2**63 for value in values)


def _check_places(file: Path, places: list[tuple[int, int, str]], num_bytes: int) -> None:
    """Raise CheckpointError where tensors overlap, leave a gap, or end before or behind the file."""
    places.sort()
    if places and places[0][0] != 0:
        raise _damaged(file, f"nothing lies in the {places[0][0]:,} bytes before {places[0][2]!r}")
    for (_, end, name), (begin, _, other) in pairwise(places):
        if begin != end:
            fact = (
                f"share {end - begin:,} bytes" if begin < end else f"have {begin - end:,} bytes between them that belong to none"
            )
            raise _damaged(file, f"{name!r} and {other!r} {fact}")
    promised = places[-1][1] if places else 0
    if promised > num_bytes:
        raise _damaged(file, f"it was cut short: {num_bytes:,} of {promised:,} bytes of tensors are there")
    if promised < num_bytes:
        raise _damaged(file, f"{num_bytes - promised:,} bytes follow its last tensor and belong to none")


def _bits(dtype: str) -> int:
    return PACKED_BITS[dtype] if dtype in PACKED_BITS else DTYPES[dtype].itemsize * 8
