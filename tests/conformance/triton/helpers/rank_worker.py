"""One of two decode-context ranks on interpreted kernels, as a process: RANK STORE TARGET; it prints what became of it."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

import hal
from hal.common.contract import exchanges

from .small_layers import LAYERS, heads_of, make_inputs, open_layer

KINDS = {"window_and_sink": "auto", "mla": "auto", "sparse": "auto"}
STEPS = (([13, 4], [13, 4]), ([1, 1], [14, 5]), ([1, 11], [15, 16]))
TABLE = np.arange(4, dtype=np.int32).reshape(2, 2)


def check_layer(rank: int, target: str, kind: str, kv_layout: str, tp: int) -> None:
    """A layer's steps on two ranks, each with its own heads where tp is 2, against one rank of the CPU backend."""
    layer = LAYERS[kind] if kind != "window_and_sink" else replace(LAYERS[kind], num_kv_heads=1)
    parallel = hal.Parallel(tp=tp, tp_rank=rank % tp, dcp=2, dcp_rank=rank)
    device = hal.Device.from_arch(target, torch_device="cpu")
    attention = open_layer(layer, device, kv_layout, "never", parallel, dist.group.WORLD)
    alone = open_layer(layer, "cpu", kv_layout, "never")
    attention.warm_up()
    generator, mine = torch.Generator().manual_seed(3), heads_of(parallel)
    for counts, lengths in STEPS:
        inputs = make_inputs(layer, sum(counts), generator)
        own = dict(inputs)
        for name in ("q", "q_nope", "q_rope"):
            if name in own:
                own[name] = own[name][:, mine]
        if layer.sink:
            own["sink"] = own["sink"][mine]
        results = []
        for each, given in ((attention, own), (alone, inputs)):
            call = each.attend if "q" in given else each.attend_mla
            results.append(call(0, metadata=each.build(hal.Batch(counts, lengths, TABLE)), **given))
        torch.testing.assert_close(results[0], results[1][:, mine], atol=2e-4, rtol=2e-4)
    assert attention.compile_misses == 0, f"{kind} of tp {tp} compiles what warm_up() did not list"


if __name__ == "__main__":
    rank, store, target = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for kind, kv_layout in KINDS.items():
        for tp in (1, 2):
            check_layer(rank, target, kind, kv_layout, tp)
    # A head and a token at a time.
    exchanges.MAX_PARTIAL_BYTES = exchanges.MAX_CANDIDATE_BYTES = 1
    check_layer(rank, target, "sparse", "auto", 2)
    print("passed", flush=True)
    dist.destroy_process_group()
