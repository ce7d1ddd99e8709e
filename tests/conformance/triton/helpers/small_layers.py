"""Layers so small that interpreting their steps is quick, opened, and inputs of a step."""

from __future__ import annotations

from typing import Any

import torch

import hal
from hal.config import IndexerShape, LayerShape, MLAShape, ModelShape

SPEC, PAGES = 1, 12
LIMITS = hal.Limits(max_model_len=48, max_num_seqs=4, max_num_batched_tokens=48, block_size=16)
MLA = MLAShape(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16)
LATENT = {"kind": "mla", "num_heads": 4, "num_kv_heads": 4, "head_dim": 32, "v_head_dim": 16, "softmax_scale": 0.2, "mla": MLA}
HEADS = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 16, "softmax_scale": 0.3}
INDEXER = IndexerShape(topk=8, num_heads=2, head_dim=32)
LAYERS = {
    "gqa": LayerShape(layer_id=0, **HEADS),
    "window_and_sink": LayerShape(layer_id=0, window=7, sink=True, **HEADS),
    "mla": LayerShape(layer_id=0, **LATENT),
    "sparse": LayerShape(layer_id=0, indexer=INDEXER, **LATENT),
    "pooled": LayerShape(layer_id=0, indexer=IndexerShape(topk=8, num_heads=2, head_dim=32, pool=2), **LATENT),
}


def open_layer(
    layer: LayerShape,
    device: hal.Device | str,
    kv_layout: str,
    graphs: str,
    parallel: hal.Parallel | None = None,
    group: Any = None,
) -> hal.Attention:
    parallel = parallel or hal.Parallel()
    shape = ModelShape(
        model_type="made_up",
        architectures=(),
        text_path="",
        hidden_size=64,
        vocab_size=10,
        num_layers=1,
        max_position_embeddings=64,
        dtype="float32",
        tie_word_embeddings=False,
        layers=(layer,),
    )
    options = {"limits": LIMITS, "dtype": "float32", "kv_layout": kv_layout, "num_spec_tokens": SPEC}
    attention = hal.plan(shape, device, graphs=graphs, parallel=parallel, **options).open(PAGES, group)
    if layer.mla is not None:
        generator = torch.Generator().manual_seed(4)
        mine = heads_of(parallel)
        attention.bind_weights(0, *(torch.randn(4, 16, 32, generator=generator)[mine] for _ in range(2)))
    return attention


def heads_of(parallel: hal.Parallel) -> slice:
    """A rank's part of a layer's four query heads."""
    count = 4 // parallel.tp
    return slice(parallel.tp_rank * count, (parallel.tp_rank + 1) * count)


def make_inputs(layer: LayerShape, tokens: int, generator: torch.Generator) -> dict[str, Any]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(tokens, *shape, generator=generator)

    if layer.mla is None:
        kv_heads = layer.num_kv_heads
        inputs = {"q": random(4, 16), "k": random(kv_heads, 16), "v": random(kv_heads, 16)}
        return inputs | ({"sink": torch.randn(4, generator=generator)} if layer.sink else {})
    inputs = {"q_nope": random(4, 16), "q_rope": random(4, 16), "latent": random(32), "k_rope": random(16)}
    if layer.indexer is None:
        return inputs
    # Whole numbers, so that scores are exact whatever the order of their sums.
    parts = [torch.randint(-2, 3, (tokens, *shape), generator=generator).float() for shape in ((2, 32), (32,), (2,))]
    return inputs | {"index": hal.IndexInputs(*parts)}
