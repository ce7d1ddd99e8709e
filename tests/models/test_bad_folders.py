"""A folder that is not what it should be is one clear sentence, exit code 2, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from hal.cli import main
from hal.common.contract.limits import Limits
from hal.config import HalError
from hal.models import CheckpointError, load, plan_checkpoint

from .helpers import folders, tiny

LIMITS = Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32)
Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny.build(tiny.llama())


@pytest.fixture(scope="module")
def whole(llama: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    folders.save(llama, folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def change_config(**fields: object) -> Spoil:
    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps({name: value for name, value in content.items() if value is not None}))

    return change


def only(*names: str) -> Spoil:
    """Empty the folder and write these files into it."""

    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name in names:
            (folder / name).write_text(json.dumps({"base_model_name_or_path": "some/base"}))

    return change


def of_another_model(folder: Path) -> None:
    tiny.gpt_neox().save_pretrained(folder)


def link_to_nothing(folder: Path) -> None:
    folders.shard(folder, {"a.safetensors": [*folders.load_file(folder / "model.safetensors")]})
    (folder / "a.safetensors").unlink()
    (folder / "a.safetensors").symlink_to("../blobs/0123")


def list_a_pickle(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def name_no_file_in_utf8(folder: Path) -> None:
    folders.shard(folder, {"a.safetensors": [*folders.load_file(folder / "model.safetensors")]}, index={})
    (folder / "a.safetensors").rename(Path(os.fsdecode(os.fsencode(folder) + b"/\xff.safetensors")))
    (folder / "b.safetensors").write_bytes(b"")


def write_index(content: bytes) -> Spoil:
    return lambda folder: (folder / "model.safetensors.index.json").write_bytes(content)


def pipe(name: str) -> Spoil:
    """A named pipe in a file's place: whoever opens it waits for a writer."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def with_names(*names: str) -> Spoil:
    """Tensors of these names beside the model's own."""
    return lambda folder: folders.rewrite(folder, lambda tensors: tensors | {name: torch.ones(2) for name in names})


BAD: dict[str, tuple[Spoil, str]] = {
    "empty-folder": (only(), "is empty, so it has no config.json"),
    "adapter": (only("adapter_config.json", "adapter_model.safetensors"), "an adapter of some/base; merge it"),
    "adapter-with-a-config": (
        lambda folder: (folder / "model.safetensors").rename(folder / "adapter_model.safetensors"),
        r"only an adapter \(adapter_model\.safetensors\); merge it",
    ),
    "pipeline": (only("model_index.json"), "is a diffusion pipeline"),
    "native-release": (only("params.json", "consolidated.00.pth"), "in its maker's own format"),
    "gguf": (only("model-Q4.gguf"), r"only model-Q4\.gguf; GGUF is not read"),
    "something-else": (only("notes.txt"), r"has no config\.json; it holds notes\.txt"),
    "another-model": (of_another_model, "config.json and the weights are most likely two models'"),
    "no-type": (change_config(model_type=None), "cannot be read by transformers: ValueError"),
    "no-utf8-config": (lambda folder: (folder / "config.json").write_bytes(b'{"a": "\xff"}'), "cannot be read by transformers"),
    "broken-link": (link_to_nothing, r"a\.safetensors is a link to \.\./blobs/0123; download them again"),
    "pickle-in-the-index": (list_a_pickle, r"lists 'pytorch_model\.bin'; convert it"),
    "no-utf8-index": (write_index(b'{"weight_map": {"\xff": "a"}}'), "not a safetensors index: UnicodeDecodeError"),
    "surrogate-in-the-index": (write_index(b'{"weight_map": {"\\ud800": "a.safetensors"}}'), "not a name that can be written"),
    "empty-index": (write_index(b'{"weight_map": {}}'), "lists no tensor; copy it again"),
    "index-of-two-minds": (
        write_index(b'{"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}}'),
        "lists 'x' twice, in a.safetensors and in b.safetensors",
    ),
    "no-utf8-file-name": (name_no_file_in_utf8, r"b\.safetensors is not a readable safetensors file"),
    "config-that-is-a-pipe": (
        pipe("config.json"),
        r"config\.json is a folder, a pipe or a device|cannot be read: it is not a file",
    ),
    "config-that-is-a-folder": (
        lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()),
        "is a folder, a pipe or a device",
    ),
    "weights-that-are-a-pipe": (pipe("model.safetensors"), "it is a folder, a pipe or a device, not a file"),
    "index-that-is-a-pipe": (pipe("model.safetensors.index.json"), "index.json is not a file"),
    "index-that-is-a-folder": (lambda folder: (folder / "model.safetensors.index.json").mkdir(), "index.json is not a file"),
    "index-that-links-to-itself": (
        lambda folder: (folder / "model.safetensors.index.json").symlink_to("model.safetensors.index.json"),
        "not a safetensors index",
    ),
    "name-of-two-lines": (with_names("a\nb"), r"1 unexpected: a\\nb$"),
    "name-that-moves-the-cursor": (with_names("a\x1b[2Jb"), r"1 unexpected: a\\x1b\[2Jb$"),
    "name-of-nothing": (with_names(""), "1 unexpected: ''$"),
    "name-without-end": (with_names("x" * 50_000), r"1 unexpected: x{600}\.\.\.$"),
    "adapter-without-its-config": (only("adapter_model.safetensors"), "is an adapter; merge it"),
    "adapter-under-the-model-s-name": (
        lambda folder: folders.rewrite(
            folder, lambda tensors: {f"base_model.model.{name[:-7]}.lora_A.weight": torch.ones(2, 4) for name in tensors}
        ),
        "It holds an adapter's tensors; merge it into its base model",
    ),
    "a-shard-that-is-a-folder": (
        lambda folder: (write_index(b'{"weight_map": {"x": "sub.safetensors"}}')(folder), (folder / "sub.safetensors").mkdir()),
        "1 of them are not there: sub.safetensors",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), BAD.values(), ids=list(BAD))
def test_a_bad_folder_is_one_sentence_and_2(folder: Path, spoil: Spoil, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(folder)
    with pytest.raises(CheckpointError, match=words):
        load(folder, device="cpu", limits=LIMITS, progress=False)
    with pytest.raises(HalError, match=words):
        plan_checkpoint(folder).raise_if_bad()
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("hal: ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("spoil", [change_config(architectures=None), change_config(architectures=["SomethingElse"])])
def test_architectures_are_not_needed(folder: Path, spoil: Spoil) -> None:
    spoil(folder)
    assert plan_checkpoint(folder).is_complete


def test_a_folder_that_nobody_may_write_to_loads_and_is_left_as_it_was(folder: Path) -> None:
    before = {file.name: (file.stat().st_mtime_ns, file.stat().st_size) for file in folder.iterdir()}
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        load(folder, device="cpu", limits=LIMITS, progress=False)
        assert {file.name: (file.stat().st_mtime_ns, file.stat().st_size) for file in folder.iterdir()} == before
    finally:
        folder.chmod(0o755)


def test_links_to_blobs_elsewhere_are_followed(folder: Path) -> None:
    """As download caches keep them."""
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for file in list(folder.iterdir()):
        file.rename(blobs / f"blob-{file.name}")
        file.symlink_to(f"../blobs/blob-{file.name}")
    assert plan_checkpoint(folder).is_complete
    load(folder, device="cpu", limits=LIMITS, progress=False)


def test_a_file_is_not_a_folder(whole: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors is a file, and is not a folder; give the folder"):
        plan_checkpoint(whole / "model.safetensors")
