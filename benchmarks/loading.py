"""Peak memory of loading a checkpoint, above a process that has imported torch, transformers and the model class.

    python benchmarks/loading.py

Checkpoints of some hundred megabytes are written to a temporary folder in several shards, then each is loaded in a fresh
process while a thread samples /proc/self/statm. "private" is memory of the process's own; "with mapped" adds the pages of
the checkpoint's files that are mapped at that moment, which the system can take back. Both are shares of the checkpoint's
bytes; "model" is the loaded model's share, above 1 where a type is widened.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import measure_rates

COMMON: dict[str, Any] = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
DENSE = COMMON | {"vocab_size": 32000, "intermediate_size": 4096, "num_hidden_layers": 12}
TIED = COMMON | {"vocab_size": 64000, "intermediate_size": 3072, "num_hidden_layers": 8, "tie_word_embeddings": True}
EXPERTS = COMMON | {
    "vocab_size": 16000,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}
LATENT = COMMON | {
    "vocab_size": 16000,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_key_value_heads": 16,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 512,
    "first_k_dense_replace": 1,
}
SHARD = "120MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One checkpoint, the type that its files hold and the type that it is loaded in."""

    name: str
    family: type[transformers.PreTrainedConfig]
    fields: dict[str, Any]
    stored: str = "float32"
    loaded: str = "float32"


CASES = (
    Case(name="dense, as stored", family=transformers.LlamaConfig, fields=DENSE),
    Case(name="dense, widened", family=transformers.LlamaConfig, fields=DENSE, stored="bfloat16"),
    Case(name="dense, narrowed", family=transformers.LlamaConfig, fields=DENSE, loaded="bfloat16"),
    Case(name="tied embeddings", family=transformers.LlamaConfig, fields=TIED),
    Case(name="merged experts", family=transformers.Qwen3MoeConfig, fields=EXPERTS),
    Case(name="merged experts, widened", family=transformers.Qwen3MoeConfig, fields=EXPERTS, stored="bfloat16"),
    Case(name="merged experts, narrowed", family=transformers.Qwen3MoeConfig, fields=EXPERTS, loaded="bfloat16"),
    Case(name="merged experts, MLA", family=transformers.DeepseekV3Config, fields=LATENT),
)


def write_checkpoint(case: Case, folder: Path) -> int:
    """Save a model of the case's config; returns the bytes of its files."""
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(case.family(**case.fields), dtype=getattr(torch, case.stored))
    module.to_empty(device="cpu")
    module.tie_weights()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.01)
    module.save_pretrained(folder, max_shard_size=SHARD)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def read_memory() -> tuple[int, int]:
    """Bytes of this process's own memory, and the same with the pages of mapped files."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = file.read().split()
    page = os.sysconf("SC_PAGE_SIZE")
    return (int(resident) - int(shared)) * page, int(resident) * page


@contextmanager
def sample_peaks(peaks: list[int]) -> Iterator[None]:
    """Keep the highest of read_memory()'s values in `peaks`, sampled about every half millisecond."""
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(0.0005):
            peaks[:] = map(max, peaks, read_memory())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()


def load_with_hal(folder: Path, dtype: str) -> Any:
    """hal's loader, with the smallest cache that it opens."""
    import hal
    from hal.models import load

    return load(folder, device="cpu", dtype=dtype, limits=hal.Limits(16, 1, 16, block_size=16), progress=False).module


def load_with_transformers(folder: Path, dtype: str) -> Any:
    """from_pretrained as it is called by everyone."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))


LOADERS = {"hal": load_with_hal, "transformers": load_with_transformers}


def measure_here(loader: str, folder: Path, dtype: str) -> None:
    """Load once in this process and print what it took, as JSON."""
    torch.set_grad_enabled(False)
    config = transformers.AutoConfig.from_pretrained(folder)
    importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    importlib.import_module("hal.models")
    gc.collect()
    before = read_memory()
    peaks = list(before)
    start = time.perf_counter()
    with sample_peaks(peaks):
        module = LOADERS[loader](folder, dtype)
    seconds = time.perf_counter() - start
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor in module.state_dict().values()}
    rise = [peak - bytes_before for peak, bytes_before in zip(peaks, before, strict=True)]
    print(json.dumps({"peaks": rise, "model": sum(sizes.values()), "seconds": seconds}))


def measure(loader: str, folder: Path, dtype: str) -> dict[str, Any]:
    """measure_here in a fresh process."""
    command = [sys.executable, __file__, loader, str(folder), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Print one line per case and loader."""
    print(measure_rates())
    print(f"{'case':26} {'loader':13} {'checkpoint':>10} {'model':>6} {'private':>8} {'with mapped':>12} {'seconds':>8}")
    for case in CASES:
        with tempfile.TemporaryDirectory() as name:
            size = write_checkpoint(case, Path(name))
            for loader in LOADERS:
                figures = measure(loader, Path(name), case.loaded)
                private, mapped = (peak / size for peak in figures["peaks"])
                model = figures["model"] / size
                print(f"{case.name:26} {loader:13} {size / 1e6:7.0f} MB {model:6.2f} {private:8.2f} {mapped:12.2f}", end="")
                print(f" {figures['seconds']:8.1f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure_here(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    else:
        main()
