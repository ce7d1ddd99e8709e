"""Host work: reading a config, explaining it, selecting a layer's backend, building a step's metadata.

python benchmarks/host.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import measure_rates, median_time

import hal

CONFIG = Path(__file__).parents[1] / "examples" / "composite-deepseek-v3.2.json"


def show(name: str, work: Callable[[], object], rounds: int, unit: float, label: str) -> None:
    """Print the median of some rounds."""
    print(f"{name}: {median_time(work, rounds) / unit:.1f} {label}")


def time_builder() -> None:
    """The metadata builder on three batches."""
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
    for name, batch in cases.items():
        show(f"build(): {name}", lambda batch=batch: attention.build(batch), 300, 1e-6, "us")


def main() -> None:
    """Print every figure."""
    print(measure_rates())
    show("read_shape of a composite DeepSeek-V3.2 config.json", lambda: hal.read_shape(CONFIG), 20, 1e-3, "ms")
    command = [sys.executable, "-m", "hal", "explain", str(CONFIG), "--device", "rocm:gfx942"]
    show("hal explain, start to finish", lambda: subprocess.run(command, capture_output=True, check=True), 5, 1, "s")
    layer = hal.read_shape(CONFIG).layer(0)
    request = hal.Request(layer, hal.Device.from_arch("sm_90"), "bfloat16")
    show("supports_combination of one layer, every backend", lambda: hal.supports_combination(request), 200, 1e-6, "us")
    time_builder()


if __name__ == "__main__":
    main()
