"""A tiny checked computation, and a trial import, each in a process of its own: a vendor's library may crash or hang."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from hal.common.backends.detection import detect
from hal.common.backends.registry import find_backend
from hal.common.contract.limits import Limits
from hal.common.planning.plan import plan
from hal.config import read_shape

TIMEOUT_SECONDS = 120
QUERY_LENS, SEQ_LENS = (1, 3), (4, 5)
SAMPLE = {
    "model_type": "sample",
    "num_hidden_layers": 1,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 16,
    "max_position_embeddings": 64,
}
_LOADED = "every module imports"
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def check_in_subprocess(backend: str, target: str) -> dict[str, Any]:
    """passed, and the largest error and the seconds it took, or why it failed."""
    code = f"from hal.cli.selfcheck import main; main({backend!r}, {target!r})"
    lines, failure = _run(code)
    if failure:
        return {"passed": False, "failure": failure}
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def check_dtype(backend: str) -> str:
    """The widest type that a backend declares and a tolerance is known for."""
    declared = find_backend(backend).capabilities
    dtypes = declared.dtypes if declared is not None else ()
    return next((name for name in TOLERANCES if name in dtypes), "float32")


def load_in_subprocess(modules: Sequence[str]) -> str | None:
    """None where every module imports, else the last line of what went wrong."""
    lines, failure = _run("\n".join([*(f"import {module}" for module in modules), f"print(); print({_LOADED!r})"]))
    if failure or (lines and lines[-1] == _LOADED):
        return failure
    return "the process ended before the import did"


def _run(code: str) -> tuple[list[str], str | None]:
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"no answer within {TIMEOUT_SECONDS} s"
    if result.returncode == 0:
        return result.stdout.splitlines(), None
    said = [line for line in result.stderr.splitlines() if line.strip()]
    ended = f"killed by signal {-result.returncode}" if result.returncode < 0 else f"exit code {result.returncode}"
    return [], said[-1].strip() if said and result.returncode > 0 else ended


def main(backend: str, target: str) -> None:
    """Prints one line of JSON: two requests through plan, builder and backend, against a loop over plain numbers."""
    dtype = check_dtype(backend)
    device = next(device for device in detect() if device.target == target)
    limits = Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=16)
    made = plan(read_shape(SAMPLE), device, limits=limits, dtype=dtype, backend=backend)
    started = time.perf_counter()
    error = _largest_error(made)
    seconds = round(time.perf_counter() - started, 3)
    passed = error <= TOLERANCES[dtype]
    failure = None if passed else f"off by {error:.3g}, allowed is {TOLERANCES[dtype]:g} in {dtype}"
    print(json.dumps({"passed": passed, "dtype": dtype, "error": error, "seconds": seconds, "failure": failure}))


def _largest_error(made: Any) -> float:
    """The worst deviation over two ragged requests whose older tokens were cached by a step before."""
    import torch

    from hal.common.contract.batch import Batch

    attention = made.open(num_blocks=2 * -(-max(SEQ_LENS) // made.block_size))
    pages = len(attention.pages.allocate(2 * -(-max(SEQ_LENS) // made.block_size))) // 2
    tables = torch.arange(2 * pages, dtype=torch.int32).view(2, pages).numpy()
    random = torch.Generator().manual_seed(0)
    k, v = (torch.randn(sum(SEQ_LENS), 1, 64, generator=random) for _ in range(2))
    q = torch.randn(sum(SEQ_LENS), 2, 64, generator=random)
    starts = (0, SEQ_LENS[0])
    rows = [range(at, at + length) for at, length in zip(starts, SEQ_LENS, strict=True)]
    before = [i for run, new in zip(rows, QUERY_LENS, strict=True) for i in run[: len(run) - new]]
    after = [i for run, new in zip(rows, QUERY_LENS, strict=True) for i in run[len(run) - new :]]
    old_lens = [length - new for length, new in zip(SEQ_LENS, QUERY_LENS, strict=True)]
    kind = {"dtype": getattr(torch, made.dtype), "device": made.device.torch_device}

    def step(ids: list[int], query_lens: Sequence[int], seq_lens: Sequence[int]) -> torch.Tensor:
        metadata = attention.build(Batch(query_lens, seq_lens, tables))
        out: torch.Tensor = attention.attend(0, q[ids].to(**kind), k[ids].to(**kind), v[ids].to(**kind), metadata)
        return out

    step(before, old_lens, old_lens)
    out = step(after, QUERY_LENS, SEQ_LENS).float().cpu()
    worst = 0.0
    for row, token in enumerate(after):
        keys = [i for i in next(run for run in rows if token in run) if i <= token]
        for head in range(2):
            expected = _attend(q[token, head].tolist(), k[keys, 0].tolist(), v[keys, 0].tolist())
            got = out[row].view(2, 64)[head].tolist()
            worst = max(worst, *(abs(a - b) if math.isfinite(a) else math.inf for a, b in zip(got, expected, strict=True)))
    return worst


def _attend(query: list[float], keys: list[list[float]], values: list[list[float]]) -> list[float]:
    scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in keys]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    return [sum(w * value[i] for w, value in zip(weights, values, strict=True)) / total for i in range(len(values[0]))]
