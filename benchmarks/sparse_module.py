"""DeepSeek-V3.2's attention on hal against transformers' own: one decoded token at 16k of context, a prefill of 4096.

    python benchmarks/sparse_module.py [--transformers] [--context 16384] [--prefill 4096]

A model of one layer with the real attention widths (128 heads, lora 512, rope 64, 64 index heads of 128, top-k 2048) and a
small feed-forward and vocabulary. Each side runs in a process of its own, so that peak memory is its own. transformers'
side is slow (a minute and more, 21 GB for the prefill) and therefore asked for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import torch
from machine import best_time, measure_rates, peak_memory_bytes, time_once
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

import hal
from hal.common.stepping.cost import count_mla, count_selected
from hal.config import read_shape
from hal.models import attach

WIDTHS = {
    "hidden_size": 1024,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 512,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
}
REST = {
    "num_hidden_layers": 1,
    "first_k_dense_replace": 1,
    "intermediate_size": 64,
    "vocab_size": 128,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def build_model() -> PreTrainedModel:
    """The one-layer model with random weights, the same in every process."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("deepseek_v32", **WIDTHS, **REST)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.02)
    return model.eval()


def run_hal(case: str, context: int, prefill: int, chunk: int) -> dict[str, float]:
    """Seconds and peak bytes of one case on hal, a prefill in steps of `chunk` tokens."""
    model = build_model()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    length = context if case == "decode" else prefill
    sizes = [1] if case == "decode" else [min(chunk, prefill - start) for start in range(0, prefill, chunk)]
    limits = hal.Limits(max_model_len=length, max_num_seqs=1, max_num_batched_tokens=max(sizes), block_size=64)
    serving = attach(model, limits=limits)
    for cache in serving.attention.caches.values():
        cache.storage.normal_()
    table = np.arange(-(-length // 64))[None, :]
    ids = torch.randint(0, 128, (sum(sizes),))
    ends = [length - sum(sizes) + end for end in accumulate(sizes)]

    def step() -> None:
        for piece, size, end in zip(ids.split(sizes), sizes, ends, strict=True):
            serving.forward(piece, hal.Batch([size], [end], table), rows=[size - 1])

    seconds = best_time(step, rounds=40 if case == "decode" else 2)
    return {"seconds": seconds, "peak_bytes": peak_memory_bytes(), "weight_bytes": weights, "sgemm": measure_rates().sgemm_gflops}


def run_transformers(case: str, context: int, prefill: int, _chunk: int) -> dict[str, float]:
    """Seconds and peak bytes of one case on transformers' eager attention."""
    model = build_model()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    with torch.inference_mode():
        if case == "prefill":
            ids = torch.randint(0, 128, (1, prefill))
            seconds = time_once(lambda: model(ids, use_cache=False, logits_to_keep=1))
        else:
            seconds = _time_decode(model, context)
    return {"seconds": seconds, "peak_bytes": peak_memory_bytes(), "weight_bytes": weights, "sgemm": measure_rates().sgemm_gflops}


def _time_decode(model: PreTrainedModel, context: int) -> float:
    cache = DynamicCache(config=model.config)
    cache.update(torch.randn(1, 1, context - 1, 512), torch.randn(1, 1, context - 1, 64), 0)
    cache.update_indexer(torch.randn(1, context - 1, 128), 0)
    ids = torch.randint(0, 128, (1, 1))
    return best_time(lambda: model(ids, past_key_values=cache, use_cache=True), rounds=2)


SIDES: dict[str, Callable[[str, int, int, int], dict[str, float]]] = {"hal": run_hal, "transformers": run_transformers}


def bound_gflop(case: str, context: int, prefill: int) -> float:
    """Billions of operations that the cheaper form needs: projections, index scores, attention."""
    layer = read_shape({"model_type": "deepseek_v32", **WIDTHS, **REST}).layers[0]
    mla, indexer = layer.mla, layer.indexer
    if mla is None or indexer is None:
        raise TypeError("the benchmark's own config is sparse MLA")
    tokens, length = (1, context) if case == "decode" else (prefill, prefill)
    cost = count_mla(mla, tokens, length, indexer.topk)
    attention = min(cost.absorbed, cost.decompressed) * layer.num_heads
    pairs = tokens * (length - tokens) + tokens * (tokens + 1) // 2
    scored = pairs - (count_selected(tokens, min(length, indexer.topk), indexer.topk) if tokens > 1 else 0)
    index = scored * indexer.num_heads * (indexer.head_dim + 1)
    hidden, rank = 1024, 512
    per_token = hidden * (rank + mla.latent_dim) + rank * layer.num_heads * layer.head_dim
    per_token += layer.num_heads * layer.v_head_dim * hidden + rank * indexer.num_heads * indexer.head_dim
    return 2 * (attention + index + per_token * tokens) / 1e9


def main() -> None:
    """Print each case, hal's share of the machine's matrix-product rate, and the ratio where both sides ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--transformers", action="store_true", help="run transformers' side too: slow, and 21 GB")
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--prefill", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=1024, help="tokens of a prefill that hal computes at once")
    parser.add_argument("--only", choices=("decode", "prefill"))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, case = arguments.child
        print(json.dumps(SIDES[side](case, arguments.context, arguments.prefill, arguments.chunk)))
        return
    print(measure_rates())
    for case in ("decode", "prefill") if arguments.only is None else (arguments.only,):
        _report(case, arguments)


def _report(case: str, arguments: argparse.Namespace) -> None:
    mine = _run_child("hal", case, arguments)
    gflop = bound_gflop(case, arguments.context, arguments.prefill)
    share = gflop / mine["seconds"] / mine["sgemm"]
    above = (mine["peak_bytes"] - mine["weight_bytes"]) / 2**30
    size = arguments.context if case == "decode" else arguments.prefill
    print(f"{case} {size}: hal {mine['seconds']:.4f} s, {gflop:.1f} GF, {share:.0%} of sgemm, {above:.2f} GiB above the weights")
    if arguments.transformers:
        theirs = _run_child("transformers", case, arguments)
        peak = (theirs["peak_bytes"] - theirs["weight_bytes"]) / 2**30
        ratio = theirs["seconds"] / mine["seconds"]
        print(f"    transformers {theirs['seconds']:.2f} s, {peak:.2f} GiB above the weights: hal is {ratio:.1f} times faster")


def _run_child(side: str, case: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", side, case]
    command += ["--context", str(arguments.context), "--prefill", str(arguments.prefill), "--chunk", str(arguments.chunk)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
