"""How long it takes to read a config: a DeepSeek-V3.2 config.json, and other families; and `hal explain` from start to finish.

Run: python benchmarks/config_reading.py [CONFIG ...]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

REPEATS = 50
V32 = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
    "tie_word_embeddings": False,
}


def median_ms(action: Callable[[], object]) -> float:
    """Median wall time of one call in milliseconds."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def first_read_ms(path: Path) -> float:
    """One read in a fresh process, after the import: nothing is cached yet."""
    code = (
        "import sys, time; from hal.config import read_shape; start = time.perf_counter(); "
        "read_shape(sys.argv[1]); print((time.perf_counter() - start) * 1e3)"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", code, str(path)])) for _ in range(5)]
    return statistics.median(times)


def import_ms() -> float:
    """Importing hal.config in a fresh process, less the interpreter's own start."""

    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    return statistics.median(seconds("import hal.config") - seconds("pass") for _ in range(5)) * 1e3


def explain_s(path: Path) -> float:
    """`hal explain` for one accelerator, start to finish."""
    command = [sys.executable, "-c", "from hal.cli import main; main()", "explain", str(path), "--device", "cuda:sm_90"]
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print one line per config."""
    from hal.config import read_shape

    with tempfile.TemporaryDirectory() as folder:
        v32 = Path(folder) / "config.json"
        v32.write_text(json.dumps(V32), encoding="utf-8")
        print(f"import hal.config                 {import_ms():8.1f} ms")
        for path in [v32, *map(Path, sys.argv[1:])]:
            name = "DeepSeek-V3.2" if path == v32 else path.stem
            again = median_ms(partial(read_shape, path))
            print(f"{name:24s} first read {first_read_ms(path):6.2f} ms, repeated {again:6.2f} ms")
        print(f"hal explain DeepSeek-V3.2         {explain_s(v32):8.2f} s")


if __name__ == "__main__":
    main()
