"""One parameter, one source: whatever a folder holds twice is decided by the index, or refused, and never chosen in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from hal.models import CheckpointError, load, plan_checkpoint

from .helpers import folders, tiny

SINGLE = "model.safetensors"


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


def numbered(folder: Path) -> dict[str, list[str]]:
    return {f"model-0000{n}-of-00002.safetensors": names for n, names in enumerate(folders.halves(folder).values(), 1)}


def others(folder: Path, file: str, change: Callable[[str], str] = lambda name: name) -> None:
    """Write a file of the folder's tensors with other values."""
    tensors = folders.load_file(folder / SINGLE)
    folders.save_file({change(name): tensor + 1.0 for name, tensor in tensors.items()}, folder / file)


def native(name: str) -> str:
    return name.removeprefix("model.").replace("self_attn", "attention")


@pytest.mark.parametrize("index", [None, {}], ids=["with-index", "without-index"])
def test_shards_and_a_whole_file_of_other_weights_are_refused(folder: Path, index: dict[str, str] | None) -> None:
    others(folder, "kept.safetensors")
    folders.shard(folder, numbered(folder), index)
    (folder / "kept.safetensors").rename(folder / SINGLE)
    for read in (plan_checkpoint, lambda path: load(path, device="cpu", progress=False, strict=False)):
        with pytest.raises(CheckpointError, match=r"two sets of weights: model\.safetensors, and .* remove one of the two"):
            read(folder)


def test_an_index_may_list_the_whole_file_itself(folder: Path) -> None:
    names = [*folders.load_file(folder / SINGLE)]
    folders.shard(folder, {"model.safetensors": names})
    assert plan_checkpoint(folder).is_complete


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("model-00001-of-00001.safetensors", str),
        ("model.fp16.safetensors", str),
        ("consolidated.safetensors", native),
        ("consolidated.safetensors", str),
    ],
    ids=["stale-shards", "variant", "native-names", "native-file-same-names"],
)
def test_what_an_index_does_not_list_is_told(folder: Path, file: str, change: Callable[[str], str]) -> None:
    others(folder, file, change)
    folders.shard(folder, numbered(folder))
    plan = plan_checkpoint(folder)
    assert plan.is_complete
    assert plan.extra_files == (file,)
    assert any(file in warning and "not read" in warning for warning in plan.warnings)


@pytest.mark.parametrize("file", ["consolidated.safetensors", "model.fp16.safetensors", "adapter_model.safetensors"])
def test_what_lies_beside_a_whole_file_is_told(folder: Path, file: str) -> None:
    others(folder, file)
    plan = plan_checkpoint(folder)
    assert plan.is_complete
    assert plan.extra_files == (file,)
    assert any(file in warning and ("not read" in warning or "not applied" in warning) for warning in plan.warnings)


def test_a_native_copy_is_left_out_of_shards_without_an_index(folder: Path) -> None:
    others(folder, "consolidated.safetensors", native)
    folders.shard(folder, numbered(folder), index={})
    plan = plan_checkpoint(folder)
    assert plan.is_complete
    assert plan.extra_files == ("consolidated.safetensors",)


def test_two_sets_of_shards_without_an_index_are_refused(folder: Path) -> None:
    others(folder, "model-00001-of-00001.safetensors")
    folders.shard(folder, numbered(folder), index={})
    with pytest.raises(CheckpointError, match=r"is in both model-00001-of-00001.* and model-00001-of-00002.* to decide"):
        plan_checkpoint(folder)


def test_a_shard_that_the_others_count_is_missed_without_an_index(folder: Path) -> None:
    folders.shard(folder, numbered(folder), index={})
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"count, 1 are not there: model-00001-of-00002\.safetensors; download"):
        plan_checkpoint(folder)


def test_a_copy_inside_the_listed_files_is_told(folder: Path) -> None:
    files = folders.halves(folder)
    index = {name: file for file, names in files.items() for name in names}
    folders.shard(folder, {file: [*names, "model.norm.weight"] for file, names in files.items()}, index)
    plan = plan_checkpoint(folder)
    assert plan.is_complete
    assert any("model.norm.weight" in warning and "read where the index says" in warning for warning in plan.warnings)


def test_a_tensor_in_another_file_than_the_index_says_is_told_with_that_file(folder: Path) -> None:
    files = folders.halves(folder)
    index = {name: file for file, names in files.items() for name in names}
    wrong = {"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}[index["model.norm.weight"]]
    folders.shard(folder, files, index | {"model.norm.weight": wrong})
    plan = plan_checkpoint(folder)
    assert plan.index_only == ("model.norm.weight",)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight \(it lies in [ab]\.safetensors instead\)"):
        plan.raise_if_bad(strict=False)


EXPERTS = "model.layers.1.mlp.experts."


def add_ready_experts(tensors: folders.Tensors) -> folders.Tensors:
    gate, up = ([tensors[f"{EXPERTS}{n}.{part}_proj.weight"] for n in range(8)] for part in ("gate", "up"))
    ready = torch.cat((torch.stack(gate), torch.stack(up)), dim=1)
    return tensors | {f"{EXPERTS}gate_up_proj": ready}


def leave_the_parts_of_one_expert(tensors: folders.Tensors) -> folders.Tensors:
    dropped = [name for name in tensors if name.startswith(EXPERTS) and not name.startswith(f"{EXPERTS}3.")]
    return {name: tensor for name, tensor in add_ready_experts(tensors).items() if name not in dropped}


@pytest.mark.parametrize("change", [add_ready_experts, leave_the_parts_of_one_expert])
@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v3", "glm-dsa-shared"])
def test_a_ready_tensor_beside_its_parts_is_a_collision(family: str, change, tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.FAMILIES[family]()), tmp_path)
    folders.rewrite(tmp_path, change)
    plan = plan_checkpoint(tmp_path)
    assert set(plan.collisions) == {f"{EXPERTS}gate_up_proj"}
    assert f"{EXPERTS}gate_up_proj" in plan.collisions[f"{EXPERTS}gate_up_proj"]
    for strict in (True, False):
        with pytest.raises(CheckpointError, match=r"filled twice: model\.layers\.1\.mlp\.experts\.gate_up_proj by"):
            load(tmp_path, device="cpu", progress=False, strict=strict)
