"""Small models whose layers differ in what matters to attention."""

from __future__ import annotations

from typing import Any

from hal.config import IndexerShape, LayerShape, MLAShape, ModelShape

MLA = MLAShape(kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
MLA_HEADS = 3
INDEX_HEADS, INDEX_WIDTH = 2, 4


def gqa(layer_id: int = 0, **changes: Any) -> LayerShape:
    """Four query heads of 8 on two KV heads, values of 6."""
    values = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 6, "softmax_scale": 0.4}
    return LayerShape(layer_id=layer_id, kind="attention", **(values | changes))


def mla(layer_id: int = 0, **changes: Any) -> LayerShape:
    """Three heads over a latent of 12 + 4."""
    values = {
        "num_heads": MLA_HEADS,
        "num_kv_heads": MLA_HEADS,
        "head_dim": 10,
        "v_head_dim": 5,
        "softmax_scale": 0.3,
        "mla": MLA,
    }
    return LayerShape(layer_id=layer_id, kind="mla", **(values | changes))


def sparse(layer_id: int = 0, *, topk: int = 5, owns: bool = True, **changes: Any) -> LayerShape:
    """An MLA layer that attends to the topk keys of an indexer."""
    indexer = IndexerShape(topk=topk, num_heads=INDEX_HEADS, head_dim=INDEX_WIDTH, owns=owns)
    return mla(layer_id, indexer=indexer, **changes)


def model(*layers: LayerShape) -> ModelShape:
    """A model of these layers."""
    return ModelShape(
        model_type="made_up",
        architectures=(),
        text_path="",
        hidden_size=32,
        vocab_size=100,
        num_layers=len(layers),
        max_position_embeddings=4096,
        dtype="float32",
        tie_word_embeddings=False,
        layers=layers,
    )
