"""Attention from its definition: one query at a time, in float64, over everything its request was ever given."""

from __future__ import annotations

import torch

from hal.config import LayerShape

TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def seen(layer: LayerShape, position: int, length: int) -> list[int]:
    """The positions a query sees in a request of this length."""
    return [
        key
        for key in range(length)
        if (key <= position or not layer.causal)
        and (layer.window is None or abs(position - key) < layer.window)
        and (layer.chunk is None or key // layer.chunk == position // layer.chunk)
    ]


def attend(
    layer: LayerShape, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sink: torch.Tensor | None = None
) -> torch.Tensor:
    """out [heads, v] of q [heads, d] over keys [n, kv_heads, d] and values [n, kv_heads, v]; a sink widens the denominator."""
    shared = q.shape[0] // keys.shape[1]
    keys, values = (rows.double().repeat_interleave(shared, dim=1) for rows in (keys, values))
    scores = torch.einsum("nhd,hd->hn", keys, q.double()) * layer.softmax_scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    terms = scores.exp()
    denominator = terms.sum(dim=1) + (0 if sink is None else sink.double().exp())
    out = torch.einsum("hn,nhv->hv", terms, values)
    return out / denominator[:, None] if len(keys) else out


def best_keys(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, topk: int) -> list[int]:
    """The topk keys [n, d] with the highest sum_h weights_h * relu(q_h . k), the earlier one of equals."""
    scores = (torch.relu(keys.double() @ q.double().T) @ weights.double()).tolist()
    return sorted(sorted(range(len(scores)), key=lambda key: (-scores[key], key))[:topk])


def expand_latents(
    latents: torch.Tensor, ropes: torch.Tensor, w_uk: torch.Tensor, w_uv: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [n, heads, nope + rope] and values [n, heads, v] of latents [n, lora] and rotary keys [n, rope]."""
    nope = torch.einsum("nl,hdl->nhd", latents.double(), w_uk.double())
    rope = ropes.double()[:, None, :].expand(-1, w_uk.shape[0], -1)
    return torch.cat([nope, rope], dim=-1), torch.einsum("nl,hvl->nhv", latents.double(), w_uv.double())


def expect_close(got: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    """Equal to the type's tolerance, in the type that was promised."""
    assert got.dtype == getattr(torch, dtype)
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
