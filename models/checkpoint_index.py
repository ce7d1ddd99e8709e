"""Which tensor lies in which safetensors file, from headers alone."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor as its file's header declares it; dtype is safetensors' name ("BF16")."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """The stored dtype. CheckpointError for one that torch has no element type for."""
        if self.dtype not in DTYPES:
            raise CheckpointError(f"{self.file}: {self.name!r} is stored as {self.dtype}; known: {', '.join(DTYPES)}")
        return DTYPES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.torch_dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """All tensors of a folder. index_only: listed by the index, in no header; header_only: in a header, not listed."""

    folder: Path
    tensors: Mapping[str, StoredTensor]
    index_only: tuple[str, ...] = ()
    header_only: tuple[str, ...] = ()


def read_index(folder: Path) -> CheckpointIndex:
    """The tensors of a checkpoint folder; no tensor data is read.

    With an index file the index decides where a tensor comes from; without one a name in two files is an error.
    CheckpointError: no safetensors, a broken header or index, a listed file that is absent or lies outside the folder.
    """
    index_file = folder / INDEX_NAME
    if index_file.is_file():
        return _read_listed(folder, _read_weight_map(index_file))
    return _read_unlisted(folder)


def _read_weight_map(index_file: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index_file.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{index_file} is not a safetensors index: {type(error).__name__}: {error}") from error
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index_file}: weight_map must map tensor names to file names")
    return weight_map


def _read_listed(folder: Path, weight_map: Mapping[str, str]) -> CheckpointIndex:
    files = {shard: _shard_path(folder, shard) for shard in sorted(set(weight_map.values()))}
    # Path.is_file() raises for a name that is too long to be a file's.
    absent = [shard for shard, file in files.items() if not os.path.isfile(file)]
    if absent:
        raise CheckpointError(
            f"{folder / INDEX_NAME} lists {len(files)} files, {len(absent)} of them are not there: {', '.join(absent)}; "
            "download them again"
        )
    headers = {shard: read_header(file) for shard, file in files.items()}
    tensors = {name: headers[shard][name] for name, shard in weight_map.items() if name in headers[shard]}
    stored = {name for header in headers.values() for name in header}
    return CheckpointIndex(
        folder=folder,
        tensors=tensors,
        index_only=tuple(sorted(set(weight_map) - set(tensors))),
        header_only=tuple(sorted(stored - set(weight_map))),
    )


def _read_unlisted(folder: Path) -> CheckpointIndex:
    single = folder / SINGLE_NAME
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        others = ", ".join(sorted(file.name for file in folder.glob("*") if file.suffix in (".bin", ".pt", ".gguf")))
        raise CheckpointError(
            f"{folder} holds no .safetensors file"
            + (f", only {others}; convert it with save_pretrained(), hal reads nothing else" if others else "")
        )
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise CheckpointError(
                    f"{name!r} is in both {tensors[name].file.name} and {file.name}, and {folder} has no {INDEX_NAME} to decide"
                )
            tensors[name] = tensor
    return CheckpointIndex(folder=folder, tensors=tensors)


def _shard_path(folder: Path, shard: str) -> Path:
    # Lexical on purpose: download caches keep a folder of links to blobs that lie elsewhere.
    relative = os.path.normpath(shard)
    if os.path.isabs(relative) or "\\" in shard or relative.split(os.sep)[0] == os.pardir:
        raise CheckpointError(f"{folder / INDEX_NAME} lists {shard!r}, which lies outside the folder; refused")
    return folder / relative


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors that one safetensors file declares. CheckpointError if the file is broken or cut short."""
    try:
        with safe_open(file, framework="pt") as handle:
            slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
            return {
                name: StoredTensor(name=name, file=file, shape=tuple(piece.get_shape()), dtype=piece.get_dtype())
                for name, piece in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error
