"""Queries that are a view of one projection with keys and values: their launches are in the warm-up list, as wide as may be."""

from __future__ import annotations

import pytest
import torch

import hal
from hal.common.triton import launch
from hal.config import LayerShape

LIMITS = hal.Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32, block_size=16)
WIDTHS = {"heads_40": (2, 20), "heads_60": (3, 20), "heads_36": (3, 12), "heads_100": (4, 100)}


@pytest.mark.parametrize("arch", ["cuda:sm_90", "rocm:gfx942"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
def test_a_view_of_a_fused_projection_is_foreseen(
    widths: tuple[int, int], dtype: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, width = widths
    layer = LayerShape(
        layer_id=0, kind="attention", num_heads=heads, num_kv_heads=1, head_dim=width, v_head_dim=width, softmax_scale=0.1
    )
    device = hal.Device.from_arch(arch, torch_device="cpu")
    request = hal.Request(layer, device, dtype, block_size=16)
    planned = set(hal.kernels(f"{device.platform}:triton", device).list_launches(request))
    made: list[launch.Launch] = []
    monkeypatch.setattr(launch.Launcher, "run", lambda _, each: made.append(each))
    calls = hal.kernels(f"{device.platform}:triton", device)
    layout = hal.layouts.attention_layout(1, width, width, dtype)
    kind = getattr(torch, dtype)
    cache = hal.backend.KVCache(torch.zeros(4, 16, layout.width, dtype=kind), layout, 16, 16)
    for tokens in (1, 5, 16):
        # Queries first, behind keys and values, and with a gate beside them.
        for spare, begin in ((2, 0), (2, 2), (3, 0), (3, 1)):
            fused = torch.zeros(tokens, (heads + spare) * width, dtype=kind)
            q = fused[:, begin * width : (begin + heads) * width].unflatten(1, (heads, width))
            batch = hal.backend.PagedBatch(
                torch.tensor([0, tokens], dtype=torch.int32),
                torch.tensor([tokens], dtype=torch.int32),
                torch.zeros(1, 4, dtype=torch.int32),
                tokens,
                tokens,
            )
            calls.paged_attention(q, cache, batch, softmax_scale=0.1)
    assert made
    keys = {launch.launch_key(each, device.arch) for each in made}
    assert not keys - planned
