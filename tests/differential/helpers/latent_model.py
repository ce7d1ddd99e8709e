"""The smallest model of latent attention."""

from __future__ import annotations

from hal.config import LayerShape, MLAShape, ModelShape

MLA = MLAShape(kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
WIDTHS = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 10, "v_head_dim": 5, "softmax_scale": 0.3, "mla": MLA}
MODEL = ModelShape(
    model_type="made_up",
    architectures=(),
    text_path="",
    hidden_size=32,
    vocab_size=100,
    num_layers=1,
    max_position_embeddings=4096,
    dtype="float32",
    tie_word_embeddings=False,
    layers=(LayerShape(layer_id=0, kind="mla", **WIDTHS),),
)
