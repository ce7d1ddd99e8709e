"""hal inspect on folders that load, that do not, and that are very large."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig

from hal.cli import main
from hal.common.contract.parallel import Parallel
from hal.config import read_shape
from hal.models import plan_checkpoint
from hal.models.build import build_module
from hal.models.checkpoint_index import read_index
from hal.models.checkpoint_plan import plan_tensors
from hal.models.sharding import plan_sharding

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = LlamaConfig(**SIZES, num_hidden_layers=3)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def change(folder: Path, drop: str, add: dict[str, torch.Tensor]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if name != drop} | add, folder / "model.safetensors")


def write_headers(config: PreTrainedConfig, folder: Path, num_files: int) -> None:
    """A folder of that many shards with true headers and no data: the files are as long as they should be, and empty."""
    config.save_pretrained(folder)
    tensors = list(build_module(config, torch.bfloat16).state_dict().items())
    weight_map: dict[str, str] = {}
    for number in range(num_files):
        file = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        header: dict[str, object] = {}
        place = 0
        for name, tensor in tensors[number::num_files]:
            size = tensor.numel() * tensor.element_size()
            header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [place, place + size]}
            weight_map[name] = file
            place += size
        text = json.dumps(header).encode()
        with open(folder / file, "wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_folder_that_loads_is_shown_by_layer_pattern(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].rstrip() == f"{folder}: loads as it is"
    rows = [line.split() for line in lines if "model.layers." in line]
    assert ["model.layers.*.mlp.up_proj.weight", "3", "x", "0-2", "F32"] in rows
    assert captured.err == ""


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_folder_that_does_not_load_is_told_in_one_line_and_2(
    folder: Path, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, "model.norm.weight", {"model.nrom.weight": torch.ones(64)})
    assert main(["inspect", str(folder), *(["--json"] if as_json else [])]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "1 missing: model.norm.weight (near model.nrom.weight); 1 unexpected: model.nrom.weight" in captured.err
    if as_json:
        report = json.loads(captured.out)
        assert report["missing"] == {"model.norm.weight": "model.nrom.weight"}
        assert report["unexpected"] == {"model.nrom.weight": "model.norm.weight"}
    else:
        assert "does not load as it is" in captured.out


def test_the_json_accounts_for_every_tensor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    change(folder, "", {"model.layers.0.self_attn.bias": mask, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert main(["inspect", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    stored = load_file(folder / "model.safetensors")
    assigned = {key for entry in report["assigned"].values() for key in entry["from"]}
    assert assigned | report["skipped"].keys() == stored.keys()
    assert report["dtypes"]["model.layers.0.self_attn.bias"] == "BOOL"
    assert (report["schema"], report["tp"], report["complete"]) == (1, 1, True)
    assert report["bytes_per_rank"] == [sum(stored[key].numel() * 4 for key in assigned)]
    assert sum(group["count"] for group in report["groups"]) == len(report["assigned"])


def test_ranks_read_their_parts_and_norms_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--tp", "2", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)["bytes_per_rank"]
    stored = load_file(folder / "model.safetensors")
    whole = sum(tensor.numel() * 4 for tensor in stored.values())
    norms = sum(tensor.numel() * 4 for name, tensor in stored.items() if "norm" in name)
    assert read == [(whole - norms) // 2 + norms] * 2


def test_every_rank_is_counted_as_if_it_were_asked_alone(tmp_path: Path) -> None:
    config = LlamaConfig(**(SIZES | {"vocab_size": 61}), num_hidden_layers=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    index = read_index(tmp_path)
    alone = []
    for rank in range(4):
        module, shape = build_module(config), read_shape(config)
        slices = plan_sharding(module, shape, Parallel(tp=4, tp_rank=rank)).slices
        alone.append(plan_tensors(index, module, shape, (slices,)).bytes_per_rank[0])
    assert len(set(alone)) == 2
    assert plan_checkpoint(tmp_path, parallel=Parallel(tp=4)).bytes_per_rank == tuple(alone)


def test_ranks_that_do_not_divide_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--tp", "3"]) == 2
    assert "which 3 ranks do not divide; tp of 2, 4 would do" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no .safetensors file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "it is empty; copy it again"),
        (lambda folder: [file.unlink() for file in folder.iterdir()], "is empty"),
    ],
    ids=["no-config", "no-weights", "empty-weights", "empty-folder"],
)
def test_a_broken_folder_is_one_line_and_2(folder: Path, spoil, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(folder)
    assert main(["inspect", str(folder)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert words in captured.err


def test_seven_hundred_shards_are_planned_within_a_second_of_computing(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, num_hidden_layers=126)
    write_headers(config, tmp_path, 700)
    plan_checkpoint(tmp_path)
    started = time.process_time()
    plan = plan_checkpoint(tmp_path)
    assert time.process_time() - started < 1.0
    assert plan.is_complete
    assert len(plan.dtypes) == 126 * 9 + 3


def test_a_mixture_is_shown_with_its_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = transformers.Qwen3MoeConfig(**SIZES, head_dim=16, num_hidden_layers=2, **experts)
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "model.layers.*.mlp.experts.gate_up_proj 2 x 0-1 F32 from 8x" in shown
    assert "by MergeModulelist, then Concatenate" in shown
