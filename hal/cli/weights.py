"""What a model's weights take of each rank's memory: from its files where they are there, else from its config."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

from hal.common.contract.plan_text import format_bytes
from hal.config import ModelShape
from hal.config.dtypes import item_size
from hal.config.weights import ParameterCount, count_parameters

from .console import InputError

AUTO = "auto"
MOST_BYTES = 10**15
_FLOATS = {"F64", "F32", "F16", "BF16"}
_LONGEST_HEADER = 100 * 2**20
"""safetensors' own limit."""
_MASKS = 0.02
"""The most of a checkpoint that buffers of old classes take: masks of whole numbers and booleans."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(|[kmgt]i?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of one rank's share of the weights, and where the number comes from and how far it may be off."""

    bytes_on_rank: int
    basis: str


def measure_weights(asked: str, config: Path, shape: ModelShape, dtype: str, tp: int) -> Weights:
    """What `--weights` means. InputError: neither "auto" nor a size, or files that cannot be read."""
    if asked.strip().lower() != AUTO:
        return Weights(bytes_on_rank=_read_size(asked), basis="as given, for each rank")
    counted = count_parameters(config, shape)
    files = _checkpoint_files(config if config.is_dir() else config.parent if config.name == "config.json" else None)
    ranks = f", of which {tp} ranks share all but what each must hold whole" if tp > 1 else ""
    if not files:
        return Weights(bytes_on_rank=counted.bytes_on_rank(dtype, tp), basis=_say_count(counted, shape, dtype) + ranks)
    total, is_converted = _sum_files(files, dtype)
    whole = min(total, counted.replicated * item_size(dtype))
    into = f", floats as {dtype}" if is_converted else ", as they are stored"
    names = files[0].name if len(files) == 1 else f"{len(files)} files"
    basis = f"the headers of {names}, {format_bytes(total)}{into}; what a loader keeps beside them is not in it"
    return Weights(bytes_on_rank=-(-(total - whole) // tp) + whole, basis=basis + ranks)


def _say_count(counted: ParameterCount, shape: ModelShape, dtype: str) -> str:
    linear = any(layer.kind == "none" for layer in shape.layers)
    error = "roughly, since layers without attention are guessed" if linear else "within a few per cent for usual blocks"
    total = f"{counted.total / 10**9:,.2f} billion" if counted.total >= 10**8 else f"{counted.total / 10**6:,.2f} million"
    kept = f"{dtype}, all but embeddings in the {counted.stored_bits} bits of its quantisation" if counted.stored_bits else dtype
    return f"about {total} parameters in {kept}; counted from the config's widths, {error}"


def _read_size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    try:
        size = float(found[1]) * _UNITS[found[2].lower()] if found else float("nan")
    except ValueError:
        size = float("nan")
    if not (isfinite(size) and 0 <= size <= MOST_BYTES):
        raise InputError(f"--weights is {text!r}; expected auto or the bytes of one rank's weights, such as 16e9 or 15GiB")
    return int(size)


def _checkpoint_files(folder: Path | None) -> tuple[Path, ...]:
    """The files of one checkpoint: those an index names, else model.safetensors, else every safetensors file."""
    if folder is None:
        return ()
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _read_json(index, index.read_bytes()).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise InputError(f"{index} has no weight_map of file names; copy it again, or give --weights BYTES")
        return tuple(folder / name for name in sorted(set(names.values())))
    single = folder / "model.safetensors"
    return (single,) if single.is_file() else tuple(sorted(folder.glob("*.safetensors")))


def _sum_files(files: tuple[Path, ...], dtype: str) -> tuple[int, bool]:
    """Bytes of all tensors, and whether floats are counted in another dtype than they are stored in.

    A checkpoint of more than a few masks beside plain floats is quantised: it stays as it is stored.
    """
    tensors = [tensor for file in files for tensor in _read_header(file)]
    others = sum(size for kind, _, size in tensors if kind not in _FLOATS)
    as_stored = sum(size for _, _, size in tensors)
    as_loaded = others + sum(prod(shape) * item_size(dtype) for kind, shape, _ in tensors if kind in _FLOATS)
    return (as_loaded, as_loaded != as_stored) if others <= _MASKS * as_stored else (as_stored, False)


def _read_header(file: Path) -> Iterator[tuple[str, list[int], int]]:
    """The dtype, shape and bytes of each tensor of a safetensors file."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(length) if length <= _LONGEST_HEADER else b""
        header = _read_json(file, text)
        for name, entry in header.items():
            if name != "__metadata__":
                start, stop = entry["data_offsets"]
                yield str(entry["dtype"]), [int(size) for size in entry["shape"]], int(stop) - int(start)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} has no header that can be read ({error}); copy it again, or give --weights BYTES") from error


def _read_json(file: Path, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{file} holds no JSON where it must ({error}); copy it again, or give --weights BYTES") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} holds a JSON {type(found).__name__}, expected an object; copy it again")
    return found
