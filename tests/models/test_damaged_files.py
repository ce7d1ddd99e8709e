"""A file that is not whole is refused in hal's words, with what to do, before anything is built from it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hal.models import CheckpointError, load, plan_checkpoint
from hal.models.checkpoint_header import PACKED_BITS, read_header

from .helpers import folders, tiny

Header = dict[str, Any]


def pack(header: bytes | Header, data: bytes = b"\0" * 24, length: int | None = None) -> bytes:
    """A file's bytes; the header's length is true unless given."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> Header:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WHOLE: Header = {"a": entry([4], 0, 16), "b": entry([2], 16, 24)}

DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "four-bytes": (b"\x10\0\0\0", "it has 4 bytes"),
    "zeros": (b"\0" * 4096, "zeros only"),
    "cut-in-the-header": (pack(WHOLE)[:40], r"its header alone takes 1\d\d bytes, and the file has 40"),
    "cut-in-the-data": (pack(WHOLE)[:-3], "it was cut short: 21 of 24 bytes"),
    "overlong": (pack(WHOLE, b"\0" * 30), "6 bytes follow its last tensor"),
    "header-beyond-the-file": (pack(WHOLE, length=5000), "its header alone takes 5,008 bytes"),
    "gigantic-header": (pack(WHOLE, length=2**63 + 11), "promise a header of 9,223,372,036,854,775,819 bytes"),
    "no-json": (pack(b'{"a": nonsense}'), "its header is not JSON"),
    "bottomless-json": (pack(b'{"a":' + b"[" * 100_000), "its header is not JSON"),
    "no-utf8": (pack(b'{"\xff": 1}'), "not UTF-8"),
    "half-a-surrogate": (pack({"\ud800": entry([6], 0, 24)}), "not a name that can be written"),
    "a-list": (pack(b"[1, 2]"), "not a table of tensors"),
    "twice-in-the-header": (pack(b'{"a": 1, "a": 2}'), "'a' is in it twice"),
    "no-shape": (pack({"a": {"dtype": "F32", "data_offsets": [0, 24]}}), "says .* of 'a', not a type, a shape"),
    "negative-size": (pack({"a": entry([-6], 0, 24)}), "says .* of 'a'"),
    "size-in-words": (pack({"a": entry(["6"], 0, 24)}), "says .* of 'a'"),  # type: ignore[list-item]
    "sizes-beyond-memory": (pack({"a": entry([2**62, 2**62], 0, 24)}), r"takes 85,\S+ bytes and is given 24"),
    "shape-of-another-tensor": (pack({"a": entry([5], 0, 24)}), r"'a' \(F32 \[5\]\) takes 20 bytes and is given 24"),
    "overlap": (pack({"a": entry([4], 0, 16), "b": entry([4], 8, 24)}), "'a' and 'b' share 8 bytes"),
    "gap": (pack({"a": entry([2], 0, 8), "b": entry([2], 16, 24)}), "'a' and 'b' have 8 bytes between them"),
    "gap-at-the-front": (pack({"a": entry([4], 8, 24)}), "nothing lies in the 8 bytes before 'a'"),
    "metadata-of-numbers": (pack({"__metadata__": {"format": 1}, **WHOLE}), "__metadata__ is not a table of texts"),
}

ANOTHER_FORMAT: dict[str, tuple[bytes, str]] = {
    "lfs-pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", r"Git LFS pointer.*git lfs pull"),
    "web-page": (b"<!DOCTYPE html><html>404</html>", "web page.*download it again"),
    "download-error": (b"Entry not found", "error message; download it again"),
    "gguf": (b"GGUF\x03\0\0\0" + b"\0" * 64, "GGUF file"),
    "pickle": (b"\x80\x02}q\x00." + b"\0" * 16, "pickle under another name"),
    "pickle-of-protocol-4": (pickle.dumps({"a": [1] * 100}, protocol=4), "pickle under another name"),
    "pickle-of-protocol-5": (pickle.dumps({"a": [1] * 100}, protocol=5), "pickle under another name"),
    "pickle-in-text": (pickle.dumps({"a": [1] * 100}, protocol=0), "pickle under another name"),
    "numpy": (b"\x93NUMPY\x01\0" + b" " * 64, "numpy array under another name"),
    "zstandard": (b"\x28\xb5\x2f\xfd" + b"\0" * 32, "zstandard archive"),
    "error-in-json": (b'{"error":"Repository not found"}', "JSON text.*download it again"),
    "pickle-archive": (b"PK\x03\x04" + b"\0" * 64, "pickle archive"),
    "gzip": (b"\x1f\x8b\x08\0" + b"\0" * 32, "gzip archive"),
}


@pytest.mark.parametrize(("content", "words"), DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_file_is_named_with_its_damage(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors is not a readable safetensors file: .*{words}.*copy it again"
    ):
        read_header(file)


@pytest.mark.parametrize(("content", "words"), ANOTHER_FORMAT.values(), ids=list(ANOTHER_FORMAT))
def test_another_format_in_its_place_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors is not a safetensors file but .*{words}"):
        read_header(file)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    folders.save(tiny.build(tiny.llama()), folder)
    return folder / "model.safetensors"


@pytest.mark.parametrize("damage", ["empty", "cut-in-the-header", "overlong", "gigantic-header", "lfs-pointer", "overlap"])
@pytest.mark.parametrize("read", [plan_checkpoint, lambda path: load(path, device="cpu", progress=False, strict=False)])
@pytest.mark.parametrize("listed", [False, True], ids=["whole-file", "shard"])
def test_every_way_in_refuses_a_damaged_file(
    damage: str, read: Callable[[Path], Any], listed: bool, whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text((whole.parent / "config.json").read_text())
    file = tmp_path / "model.safetensors"
    file.write_bytes((DAMAGED | ANOTHER_FORMAT)[damage][0])
    if listed:
        file = file.rename(tmp_path / "a.safetensors")
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": file.name}}))
    with pytest.raises(CheckpointError, match=r"(model|a)\.safetensors is not a"):
        read(tmp_path)


def test_a_header_read_here_says_what_the_format_s_own_reader_says(whole: Path) -> None:
    with safe_open(whole, framework="pt") as handle:
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
        theirs = {name: (tuple(piece.get_shape()), piece.get_dtype()) for name, piece in slices.items()}
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in read_header(whole).items()} == theirs


@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.uint16, torch.uint64, torch.bool])
def test_every_element_type_of_torch_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5).to(dtype), "empty": torch.zeros(0, 4)}, tmp_path / "x.safetensors")
    header = read_header(tmp_path / "x.safetensors")
    assert header["a"].torch_dtype == dtype
    assert (header["a"].shape, header["a"].num_bytes) == ((3, 5), 15 * dtype.itemsize)


@pytest.mark.parametrize("dtype", PACKED_BITS)
def test_elements_narrower_than_a_byte_are_measured_and_not_loadable(dtype: str, tmp_path: Path) -> None:
    num_bytes = 8 * PACKED_BITS[dtype] // 8
    (tmp_path / "x.safetensors").write_bytes(pack({"a": entry([8], 0, num_bytes, dtype)}, b"\0" * num_bytes))
    tensor = read_header(tmp_path / "x.safetensors")["a"]
    assert tensor.num_bytes == num_bytes
    with pytest.raises(CheckpointError, match=dtype):
        _ = tensor.torch_dtype


def is_read(read: Callable[[Path], object], file: Path) -> bool:
    try:
        read(file)
    except CheckpointError:
        return False
    return True


def their_verdict(file: Path) -> bool:
    try:
        with safe_open(file, framework="pt"):
            return True
    except SafetensorError:
        return False


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 210), value=st.integers(0, 255), cut=st.integers(0, 3), extra=st.integers(0, 1))
def test_whatever_the_format_s_own_reader_refuses_is_refused(
    place: int, value: int, cut: int, extra: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(pack(WHOLE))
    content[place % len(content)] = value
    file = tmp_path_factory.getbasetemp() / "spoilt.safetensors"
    file.write_bytes(bytes(content[: len(content) - cut]) + b"\0" * extra)
    assert is_read(read_header, file) <= their_verdict(file)
