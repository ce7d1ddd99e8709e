"""What loading takes, beside what it has to: memory against the rank's share, time against reading the bytes.

    python benchmarks/rank_loading.py [MODEL_FOLDER ...]

The folders given, SmolLM2 where `make demo` has left it, and a generated checkpoint of 4 GB in bfloat16 are loaded by one
rank and by the fewest more that divide them, each a fresh process, with the files in the page cache. "memory" is the peak of
the process's own memory above what it had before, as a share of the rank's parameters, over all of load(); parameters that
lie in the files' mapped pages count as well. "time" is that of filling the model, from the first slice to the last finished
parameter, as a share of reading as many bytes just before, by all ranks at once, one file after the other, each into memory of
its own that is kept until the last is read, as a model keeps its parameters: where a machine's memory is another's, a page
that was given back lately costs a third of one that was not. What load() takes with configs, plans and the model's first
steps stands beside it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from loading import read_memory, sample_peaks
from machine import measure_rates

GENERATED: dict[str, Any] = {
    "vocab_size": 64000,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 17,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
}
SMOLLM2 = Path(__file__).resolve().parent.parent / ".cache" / "smollm2"
MOST_MEMORY, MOST_TIME = 1.15, 1.5
ROUNDS = 3


def write_generated(folder: Path) -> None:
    """A Llama of 4 GB in shards of 1 GB; every tensor repeats the same random numbers."""
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GENERATED)).to(torch.bfloat16)
    module.to_empty(device="cpu")
    numbers = torch.randn(1 << 20).mul_(0.02).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in module.parameters():
            flat = parameter.view(-1)
            for start in range(0, flat.numel(), numbers.numel()):
                flat[start : start + numbers.numel()] = numbers[: flat.numel() - start]
    module.save_pretrained(folder, max_shard_size="1GB")


def read_bytes(folder: Path, share: float, wait: Callable[[], object]) -> float:
    """Seconds that reading this share of every file into memory takes, at its fastest; ranks wait for each other first."""
    best = float("inf")
    for _ in range(ROUNDS):
        wait()
        start, kept = time.perf_counter(), []
        for file in sorted(folder.glob("*.safetensors")):
            memory = torch.empty(int(file.stat().st_size * share), dtype=torch.uint8)
            with open(file, "rb", buffering=0) as opened:
                opened.readinto(memory.numpy())
            kept.append(memory)
        best = min(best, time.perf_counter() - start)
    return best


@contextmanager
def timed_filling() -> Iterator[list[float]]:
    """The seconds that load() spends in its loader, in a list of one."""
    module_of_load: Any = importlib.import_module("hal.models.load")

    inner, seconds = module_of_load.load_weights, [0.0]

    def fill(*args: Any, **keywords: Any) -> Any:
        start = time.perf_counter()
        notes = inner(*args, **keywords)
        seconds[0] = time.perf_counter() - start
        return notes

    module_of_load.load_weights = fill
    try:
        yield seconds
    finally:
        module_of_load.load_weights = inner


def measure_rank(folder: Path, rank: int, ranks: int, store: str, is_sampled: bool) -> None:
    """Load once as one rank and print what it took, as JSON: memory where it is sampled, else time, which sampling adds to."""
    import hal
    from hal.models import load

    torch.set_num_threads(1)
    group = None
    if ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        group = torch.distributed.group.WORLD
    limits = hal.Limits(16, 1, 16, block_size=16)
    tiny_folder = Path(store + "-warm")
    load(tiny_folder, device="cpu", limits=limits, group=group, progress=False)
    wait = (lambda: None) if group is None else torch.distributed.barrier
    seconds_to_read = read_bytes(folder, 1 / ranks, wait)
    gc.collect()
    before = read_memory()
    peaks = list(before)
    wait()
    start = time.perf_counter()
    with sample_peaks(peaks) if is_sampled else nullcontext(), timed_filling() as filling:
        module = load(folder, device="cpu", limits=limits, group=group, progress=False).module
    seconds = time.perf_counter() - start
    held = sum({tensor.data_ptr(): tensor.nbytes for tensor in module.state_dict().values()}.values())
    memory, whole = (max(peaks[kind] - before[kind], 0) / held for kind in (0, 1))
    found = {"time": filling[0] / seconds_to_read, "held": held, "fill": filling[0], "seconds": seconds}
    print(json.dumps({"memory": max(memory, whole)} if is_sampled else found))


def measure(folder: Path, ranks: int) -> list[dict[str, float]]:
    """Every rank's figures, from fresh processes, those that are timed and those whose memory is sampled apart."""
    return [one | other for one, other in zip(*(load_once(folder, ranks, kind) for kind in ("time", "memory")), strict=True)]


def load_once(folder: Path, ranks: int, kind: str) -> list[dict[str, float]]:
    """What measure_rank() prints for every rank."""
    with tempfile.TemporaryDirectory() as name:
        sizes = {
            "hidden_size": 384,
            "intermediate_size": 192,
            "num_attention_heads": 24,
            "num_hidden_layers": 1,
            "vocab_size": 96,
        }
        small = transformers.LlamaConfig(**sizes)
        transformers.LlamaForCausalLM(small).save_pretrained(f"{name}/store-warm")
        end = [str(ranks), f"{name}/store", kind]
        commands = [[sys.executable, __file__, "--rank", str(folder), str(rank), *end] for rank in range(ranks)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for command in commands]
        outputs = [process.communicate()[0] for process in processes]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def fewest_ranks(folder: Path) -> int:
    """The smallest number of ranks above one that divides a model; SmolLM2 has nine heads."""
    import hal
    from hal.models import plan_checkpoint

    for ranks in range(2, 9):
        try:
            plan_checkpoint(folder, parallel=hal.Parallel(tp=ranks))
        except hal.InputError:
            continue
        return ranks
    raise SystemExit(f"{folder} runs on one rank alone")


def report(name: str, folder: Path) -> bool:
    """Print the figures of a folder; whether all are within the limits."""
    is_good = True
    for ranks in (1, fewest_ranks(folder)):
        for rank, found in enumerate(measure(folder, ranks)):
            good = found["memory"] <= MOST_MEMORY and found["time"] <= MOST_TIME
            is_good &= good
            took = f"load {found['seconds']:6.2f} s, filling {found['fill']:6.2f} s"
            shares = f"memory {found['memory']:5.2f}  time {found['time']:5.2f}  {'' if good else 'above the limit'}"
            print(f"{name:24} {rank + 1} of {ranks}  {found['held'] / 1e9:6.2f} GB  {took}  {shares}", flush=True)
    return is_good


def main(folders: list[str]) -> int:
    """Measure every folder and the generated checkpoint; 1 where a figure is above its limit."""
    print(measure_rates())
    folders = folders or [str(folder) for folder in (SMOLLM2,) if folder.is_dir()]
    results = [report(Path(folder).name, Path(folder)) for folder in folders]
    with tempfile.TemporaryDirectory() as name:
        write_generated(Path(name))
        results.append(report("generated", Path(name)))
    return 0 if all(results) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        measure_rank(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6] == "memory")
    else:
        sys.exit(main(sys.argv[1:]))
