"""Host work: reading a config, explaining it, selecting a layer's backend, building a step's metadata. Best of many rounds.

python benchmarks/host.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from machine import best_time, measure_rates

import hal
from hal.common.backends.judging import explain_refusal
from hal.common.backends.registry import backends

CONFIG = Path(__file__).parents[1] / "examples" / "composite-deepseek-v3.2.json"


def show(name: str, work: Callable[[], object], rounds: int, unit: float, label: str) -> None:
    """Print the best of some rounds."""
    print(f"{name}: {best_time(work, rounds) / unit:.1f} {label}")


def time_selection() -> None:
    """One layer over every backend: judged anew, and asked again."""
    layer = hal.read_shape(CONFIG).layer(0)
    for arch in ("sm_90", "gfx942", "pvc", "cpu"):
        request = hal.Request(layer, hal.Device.from_arch(arch), "bfloat16")
        judge = lambda request=request: [explain_refusal(cls, request) for cls in backends().values()]  # noqa: E731
        show(f"{arch}: every backend judged anew", judge, 1000, 1e-6, "us")
        show(f"{arch}: supports_combination", lambda request=request: hal.supports_combination(request), 1000, 1e-6, "us")
        show(f"{arch}: select", lambda request=request: hal.select(request), 1000, 1e-6, "us")


def time_builder() -> None:
    """The metadata builder: three host batches, and device tensors with and without slots of the engine's own."""
    layer = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 100}
    plan = hal.plan(hal.read_shape(layer), "cpu", limits=hal.Limits(8192, 256, 8192, block_size=16), dtype="float32")
    attention = plan.open(1 << 17)
    random = np.random.default_rng(0)
    tables = random.permutation(1 << 17)[: 256 * 512].reshape(256, 512).astype(np.int32)
    lengths = random.integers(100, 8192, 256)
    cases = {
        "256 decodes, tables 512 wide": hal.Batch(np.ones(256, np.int32), lengths, tables),
        "64 decodes + 4 prefills of 1024 over 4096": hal.Batch([1] * 64 + [1024] * 4, [*lengths[:64], *[5120] * 4], tables[:68]),
        "one decode": hal.Batch([1], [5000], tables[:1]),
    }
    device = [torch.arange(257, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32), torch.tensor(tables)]
    sizes = {"num_tokens": 256, "max_query_len": 1, "max_seq_len": int(lengths.max())}
    cases["256 decodes from device tensors"] = hal.Batch.from_device(*device, **sizes)
    slots = attention.build(cases["256 decodes, tables 512 wide"]).slot_mapping.clone()
    cases["the same with the engine's slots"] = hal.Batch.from_device(*device, slots, **sizes)
    for name, batch in cases.items():
        show(f"build(): {name}", lambda batch=batch: attention.build(batch), 1000, 1e-6, "us")


def main() -> None:
    """Print every figure."""
    print(measure_rates())
    show("read_shape of a composite DeepSeek-V3.2 config.json", lambda: hal.read_shape(CONFIG), 20, 1e-3, "ms")
    command = [sys.executable, "-m", "hal", "explain", str(CONFIG), "--device", "rocm:gfx942"]
    show("hal explain, start to finish", lambda: subprocess.run(command, capture_output=True, check=True), 5, 1, "s")
    time_selection()
    time_builder()


if __name__ == "__main__":
    main()
