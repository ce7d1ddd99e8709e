"""Which tensor lies in which safetensors file of a folder: the index held against the files, and the files against it."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checkpoint_header import StoredTensor, is_text, read_header
from .errors import CheckpointError, listed

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
ADAPTER_NAME = "adapter_model.safetensors"
NATIVE_COPY = "consolidated"
"""How Mistral's releases name a second copy of the weights, under the names of their own code."""

OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf", ".ggml", ".h5", ".msgpack", ".npz", ".onnx")
"""Files that hold weights in a form that runs code when it is read, or that transformers' loader does not take."""

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """All tensors of a folder. index_only: listed by the index, in no header; header_only: in a header, not listed.

    elsewhere: of the index_only names, the listed file that does hold it. extra_files: safetensors files that are not read.
    warnings: what a user should know about the folder, a sentence each.
    """

    folder: Path
    tensors: Mapping[str, StoredTensor]
    index_only: tuple[str, ...] = ()
    header_only: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    extra_files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return tuple(sorted({tensor.file for tensor in self.tensors.values()}))


def read_index(folder: Path) -> CheckpointIndex:
    """The tensors of a checkpoint folder; no tensor data is read.

    With an index file the index decides where a tensor comes from; without one a name in two files is an error.
    CheckpointError: no safetensors, a broken header or index, a listed file that is absent or lies outside the folder, two
    sets of weights of which loaders take now the one, now the other.
    """
    index_file = folder / INDEX_NAME
    if os.path.lexists(index_file):
        return _read_listed(folder, _read_weight_map(index_file))
    return _read_unlisted(folder)


def _read_weight_map(index_file: Path) -> dict[str, str]:
    if index_file.exists() and not index_file.is_file():
        raise CheckpointError(f"{index_file} is not a file; copy it again, or remove it where the files beside it are whole")
    try:
        weight_map = json.loads(index_file.read_text(encoding="utf-8"), object_pairs_hook=_merge_repeats)["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{index_file} is not a safetensors index: {type(error).__name__}: {error}; copy it again"
        ) from error
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index_file}: weight_map must map tensor names to file names; copy it again")
    unwritable = next((name for pair in weight_map.items() for name in pair if not is_text(name)), None)
    if unwritable is not None:
        raise CheckpointError(f"{index_file} lists {unwritable!a}, which is not a name that can be written; copy it again")
    if not weight_map:
        raise CheckpointError(f"{index_file} lists no tensor; copy it again, or remove it where the files beside it are whole")
    return weight_map


def _merge_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if table.setdefault(name, value) != value:
            raise ValueError(f"it lists {name!r} twice, in {table[name]} and in {value}")
    return table


def _read_listed(folder: Path, weight_map: Mapping[str, str]) -> CheckpointIndex:
    files = {shard: _shard_path(folder, shard) for shard in sorted(set(weight_map.values()))}
    _check_present(folder, files)
    extra = tuple(sorted({file.name for file in folder.glob("*.safetensors")} - {str(path.name) for path in files.values()}))
    if SINGLE_NAME in extra:
        raise CheckpointError(
            f"{folder} holds two sets of weights: {SINGLE_NAME}, and the {len(files)} files that {INDEX_NAME} lists "
            f"({listed(list(files), 3)}); loaders differ in which they take, so remove one of the two"
        )
    headers = {shard: read_header(file) for shard, file in files.items()}
    tensors = {name: headers[shard][name] for name, shard in weight_map.items() if name in headers[shard]}
    holders: dict[str, list[str]] = defaultdict(list)
    for shard, header in headers.items():
        for name in header:
            holders[name].append(shard)
    index_only = tuple(sorted(set(weight_map) - set(tensors)))
    return CheckpointIndex(
        folder=folder,
        tensors=tensors,
        index_only=index_only,
        header_only=tuple(sorted(set(holders) - set(weight_map))),
        elsewhere={name: holders[name][0] for name in index_only if name in holders},
        extra_files=extra,
        warnings=(*_warn_of_copies(holders, weight_map), *_warn_of_extra(extra, f"are not listed by {INDEX_NAME}")),
    )


def _check_present(folder: Path, files: Mapping[str, Path]) -> None:
    # Path.is_file() raises for a name that is too long to be a file's.
    absent = [shard for shard, file in files.items() if not os.path.isfile(file)]
    if not absent:
        return
    links = [f"{shard} is a link to {os.readlink(files[shard])}" for shard in absent if os.path.islink(files[shard])]
    raise CheckpointError(
        f"{folder / INDEX_NAME} lists {len(files)} files, {len(absent)} of them are not there: {listed(absent)}; "
        + (f"{listed(links)}; " if links else "")
        + "download them again"
    )


def _warn_of_copies(holders: Mapping[str, Sequence[str]], weight_map: Mapping[str, str]) -> list[str]:
    twice = [name for name, shards in holders.items() if len(shards) > 1 and weight_map.get(name) in shards]
    if not twice:
        return []
    first = twice[0]
    others = " and ".join(shard for shard in holders[first] if shard != weight_map[first])
    return [
        f"{len(twice)} tensors lie in two files and are read where the index says ({first} in {weight_map[first]}, not {others})"
    ]


def _warn_of_extra(extra: Sequence[str], why: str) -> list[str]:
    warnings = []
    if ADAPTER_NAME in extra:
        warnings.append(f"{ADAPTER_NAME} is an adapter and is not applied; merge it into the weights if it is meant to be")
    others = [name for name in extra if name != ADAPTER_NAME]
    if others:
        warnings.append(f"{len(others)} safetensors files {why} and are not read: {listed(others)}")
    return warnings


def _read_unlisted(folder: Path) -> CheckpointIndex:
    present = sorted(folder.glob("*.safetensors"))
    plain = [file for file in present if file.name != ADAPTER_NAME]
    chosen = [file for file in plain if file.name == SINGLE_NAME]
    shards = [file for file in plain if _NUMBERED.fullmatch(file.name)]
    if chosen:
        _check_no_rival(folder, shards)
    else:
        chosen = [file for file in plain if not file.name.startswith(NATIVE_COPY)] or plain
    if not chosen:
        _refuse_without_weights(folder, present)
    _check_numbers(folder, chosen)
    extra = tuple(file.name for file in present if file not in chosen)
    tensors: dict[str, StoredTensor] = {}
    for file in chosen:
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise CheckpointError(
                    f"{name!r} is in both {tensors[name].file.name} and {file.name}, and {folder} has no {INDEX_NAME} to decide"
                )
            tensors[name] = tensor
    return CheckpointIndex(
        folder=folder,
        tensors=tensors,
        extra_files=extra,
        warnings=tuple(_warn_of_extra(extra, f"lie beside {chosen[0].name}")),
    )


def _check_no_rival(folder: Path, shards: Sequence[Path]) -> None:
    if not shards:
        return
    names = read_header(folder / SINGLE_NAME).keys()
    both = [name for file in shards for name in read_header(file) if name in names]
    if both:
        raise CheckpointError(
            f"{folder} holds two sets of weights: {SINGLE_NAME}, and {len(shards)} shards without an {INDEX_NAME} "
            f"({listed([file.name for file in shards], 3)}); {len(both)} names are in both ({both[0]}), so remove one of the two"
        )


def _check_numbers(folder: Path, files: Sequence[Path]) -> None:
    """Raise CheckpointError where a file calls itself one of several and the others are not all there."""
    sets: dict[tuple[str, int], set[int]] = defaultdict(set)
    for file in files:
        match = _NUMBERED.fullmatch(file.name)
        if match is not None:
            sets[match.group(1), int(match.group(3))].add(int(match.group(2)))
    for (stem, count), numbers in sets.items():
        absent = [f"{stem}-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1) if number not in numbers]
        if absent:
            raise CheckpointError(
                f"{folder} has no {INDEX_NAME}, and of the {count} files that its file names count, {len(absent)} are not "
                f"there: {listed(absent)}; download them again"
            )


def _refuse_without_weights(folder: Path, present: Sequence[Path]) -> None:
    if present:
        raise CheckpointError(f"{folder} holds only an adapter ({ADAPTER_NAME}); merge it into its base model and save that")
    found = sorted(file.name for file in folder.glob("*") if file.suffix in OTHER_WEIGHTS)
    raise CheckpointError(
        f"{folder} holds no .safetensors file"
        + (f", only {listed(found)}; convert it with save_pretrained(), hal reads nothing else" if found else "")
    )


def _shard_path(folder: Path, shard: str) -> Path:
    # Lexical on purpose: download caches keep a folder of links to blobs that lie elsewhere.
    relative = os.path.normpath(shard)
    if os.path.isabs(relative) or "\\" in shard or "\0" in shard or relative.split(os.sep)[0] == os.pardir:
        raise CheckpointError(f"{folder / INDEX_NAME} lists {shard!r}, which lies outside the folder; refused")
    if relative.endswith(OTHER_WEIGHTS):
        raise CheckpointError(
            f"{folder / INDEX_NAME} lists {shard!r}; convert it with save_pretrained(), hal reads nothing but .safetensors files"
        )
    return folder / relative
