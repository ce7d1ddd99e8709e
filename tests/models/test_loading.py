"""How weights are read: little at a time, and nothing of the process changed."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from hal.common.contract.limits import Limits
from hal.models import load, loader
from hal.models.ranks import Ranks

from .helpers import folders, tiny

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "loading.py"
LIMITS = Limits(max_model_len=16, max_num_seqs=1, max_num_batched_tokens=16, block_size=16)
WIDE_EXPERTS = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_experts": 12,
    "num_experts_per_tok": 2,
}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_merging_and_widening_experts_takes_little_more_than_the_model(tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(**(tiny.COMMON | WIDE_EXPERTS), num_key_value_heads=2)
    tiny.build(config).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="40MB")
    command = [sys.executable, str(BENCHMARK), "hal", str(tmp_path), "float32"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(BENCHMARK.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["peaks"][0] / figures["model"] < 1.2


def make_portions_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMALLEST_PORTION", "SMALLEST_PORTION_IN_TURN"):
        monkeypatch.setattr(loader, name, 1)


def test_freed_memory_is_given_back_after_every_portion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.save(tiny.build(tiny.qwen3_moe()), tmp_path)
    make_portions_small(monkeypatch)
    steps: list[str] = []
    read, give_back = loader._load_portion, loader._give_back_freed_memory
    monkeypatch.setattr(loader, "_load_portion", lambda *args: (steps.append("read"), read(*args))[1])
    monkeypatch.setattr(loader, "_give_back_freed_memory", lambda: (steps.append("give back"), give_back())[1])
    load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert steps[0] == "give back"
    assert steps[1:] == ["read", "give back"] * (len(steps) // 2)
    assert len(steps) > 10


@pytest.mark.parametrize(
    ("processors", "num_ranks", "switch"), [(1, 1, "1"), (2, 1, None), (2, 2, "1"), (5, 3, "1"), (8, 4, None)]
)
def test_threads_read_only_where_every_rank_has_processors_for_them(
    processors: int, num_ranks: int, switch: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    monkeypatch.delenv(loader.NO_THREADS, raising=False)
    monkeypatch.setattr(loader, "count_processors", lambda: processors)
    monkeypatch.setattr(Ranks, "count", num_ranks)
    seen = []
    convert = loader.convert_and_load_state_dict_in_model
    monkeypatch.setattr(
        loader,
        "convert_and_load_state_dict_in_model",
        lambda *args: seen.append(os.environ.get(loader.NO_THREADS)) or convert(*args),
    )
    load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert seen == [switch]


def test_the_reading_switch_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.save(tiny.build(tiny.qwen3_moe()), tmp_path)
    seen = []
    convert = loader.convert_and_load_state_dict_in_model
    monkeypatch.setattr(
        loader,
        "convert_and_load_state_dict_in_model",
        lambda *args: seen.append(os.environ.get(loader.NO_THREADS)) or convert(*args),
    )
    for before in (None, "0"):
        monkeypatch.delenv(loader.NO_THREADS, raising=False)
        if before is not None:
            monkeypatch.setenv(loader.NO_THREADS, before)
        load(tmp_path, device="cpu", limits=LIMITS, progress=False)
        assert os.environ.get(loader.NO_THREADS) == before
    assert seen == ["1", "1"]


def test_an_interrupted_load_leaves_nothing_half_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.save(tiny.build(tiny.qwen3_moe()), tmp_path)
    make_portions_small(monkeypatch)
    read, portions = loader._load_portion, []

    def interrupt(*args: object) -> object:
        portions.append(args)
        if len(portions) == 3:
            raise KeyboardInterrupt
        return read(*args)

    def count_models() -> int:
        gc.collect()
        return sum(issubclass(type(each), transformers.PreTrainedModel) for each in gc.get_objects())

    before = count_models(), os.environ.get(loader.NO_THREADS), transformers.logging.get_verbosity()
    monkeypatch.setattr(loader, "_load_portion", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    portions[:] = [()] * 3
    assert (count_models(), os.environ.get(loader.NO_THREADS), transformers.logging.get_verbosity()) == before
    assert load(tmp_path, device="cpu", limits=LIMITS, progress=False).generate([[5, 6, 7]], 2)
