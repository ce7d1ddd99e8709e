"""Tensors are read as the format's own reader gives them, from files that may change under the reader's hands."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hal.common.contract.limits import Limits
from hal.models import CheckpointError, load, loader, tensor_file
from hal.models.checkpoint_header import read_header
from hal.models.tensor_file import open_tensors

from .helpers import folders, tiny

LIMITS = Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64, torch.uint16]
)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 7), (2, 3, 4)], ids=str)
def test_every_type_and_shape_is_read_whole(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).abs().to(dtype)
    file = tmp_path / "x.safetensors"
    save_file({"before": torch.ones(3), "x": tensor}, file)
    with open_tensors(file) as tensors:
        found = tensors.get_slice(read_header(file)["x"])[...]
    assert (found.dtype, tuple(found.shape)) == (dtype, shape)
    assert torch.equal(found.view(torch.uint8) if shape else found, tensor.view(torch.uint8) if shape else tensor)


@pytest.mark.parametrize(
    ("shape", "index", "most_reads"),
    [
        ((300, 1024), (slice(None), slice(256, 512)), 2),
        ((300, 1024), (slice(10, 20), slice(256, 512)), 1),
        ((4, 75, 1024), (slice(None), slice(None), slice(256, 512)), 2),
        ((4, 75, 1024), (slice(1, 3), slice(None), slice(256, 512)), 1),
        ((4, 75, 1024), (slice(None), slice(5, 70), slice(256, 512)), 4),
        ((8, 8192), (slice(None), slice(0, 4096)), 8),
    ],
    ids=str,
)
def test_short_rows_are_read_many_at_a_time(
    shape: tuple[int, ...], index: tuple[slice, ...], most_reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    save_file({"x": tensor, "y": tensor.clone()}, tmp_path / "x.safetensors")
    header = read_header(tmp_path / "x.safetensors")
    reads: list[int] = []
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: reads.append(read(*args)) or reads[-1])
    with open_tensors(tmp_path / "x.safetensors") as tensors:
        for name in "xy":
            assert torch.equal(tensors.get_slice(header[name])[index], tensor[index])
        assert len(tensors.buffers) <= 1
    assert len(reads) <= 2 * most_reads
    assert max(reads) <= tensor_file.BLOCK


SLICES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda pair: slice(min(pair), max(pair)))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    index=st.lists(SLICES | st.just(slice(None)), min_size=1, max_size=4),
    short=st.sampled_from([0, 16, 1 << 11]),
    block=st.sampled_from([1, 64, 1 << 22]),
)
def test_any_slices_are_those_of_the_tensor(
    shape: list[int], index: list[slice], short: int, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    file = tmp_path_factory.getbasetemp() / "slices.safetensors"
    save_file({"before": torch.ones(3), "x": tensor}, file)
    picked = tuple(index[: len(shape)])
    with pytest.MonkeyPatch.context() as patch, open_tensors(file) as tensors:
        patch.setattr(tensor_file, "SHORT_ROW", short)
        patch.setattr(tensor_file, "BLOCK", block)
        found = tensors.get_slice(read_header(file)["x"])[picked]
    assert torch.equal(found, tensor[picked])


def living_bytes() -> int:
    """Bytes of all tensors with data that Python still holds."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and not each.is_meta]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.0], ids=["most", "half", "nothing"])
def test_a_file_that_is_cut_short_while_it_is_read_is_an_error_and_leaves_nothing(
    kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    file = tmp_path / "model.safetensors"
    monkeypatch.setattr(loader, "SMALLEST_PORTION", 1)
    read = loader._load_portion
    count = 0

    def cut(*args: object) -> object:
        nonlocal count
        count += 1
        if count == 3:
            os.truncate(file, int(file.stat().st_size * kept))
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(loader, "_load_portion", cut)
    before = living_bytes()
    with pytest.raises(CheckpointError, match=r"model\.safetensors ended at byte .* while it was read, .* copy it again"):
        load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert living_bytes() <= before


def test_a_file_that_is_gone_before_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    read = loader._load_in_portions

    def remove(*args: object) -> object:
        (tmp_path / "model.safetensors").unlink()
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(loader, "_load_in_portions", remove)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be opened: No such file.*copy it again"):
        load(tmp_path, device="cpu", limits=LIMITS, progress=False)


def test_a_loaded_model_does_not_depend_on_its_files_any_more(tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    expected = {name: tensor.clone() for name, tensor in stored.items()}
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    os.truncate(tmp_path / "model.safetensors", 0)
    assert all(torch.equal(model.module.get_parameter(name), tensor) for name, tensor in expected.items())
