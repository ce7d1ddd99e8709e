"""Pooled index keys on the portable kernels: the results of the CPU backend, and no launch that was not foreseen."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import hal
from hal.config import IndexerShape, LayerShape, MLAShape, ModelShape

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

WIDTHS = MLAShape(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16)
LIMITS = hal.Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32, block_size=16)
POOL, TOPK, HEADS, INDEX_HEADS, INDEX_WIDTH = 4, 16, 4, 2, 32


def model() -> ModelShape:
    indexer = IndexerShape(topk=TOPK, num_heads=INDEX_HEADS, head_dim=INDEX_WIDTH, pool=POOL)
    layer = LayerShape(
        layer_id=0,
        kind="mla",
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=32,
        v_head_dim=16,
        softmax_scale=0.2,
        mla=WIDTHS,
        indexer=indexer,
    )
    return ModelShape(
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


@pytest.mark.parametrize("target", ["cuda:sm_90", "rocm:gfx942"])
def test_the_results_of_the_cpu_backend(target: str) -> None:
    device = hal.Device.from_arch(target, torch_device="cpu")
    attentions = [hal.plan(model(), place, limits=LIMITS, dtype="float32").open(8) for place in (device, "cpu")]
    assert {group.part for group in attentions[0].plan.groups} == {"kv", "index", "index_state"}
    attentions[0].warm_up()
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    weights = random(HEADS, 16, 32), random(HEADS, 16, 32)
    for attention in attentions:
        attention.bind_weights(0, *weights)
    table, lengths = np.arange(8, dtype=np.int32).reshape(2, 4), np.zeros(2, np.int64)
    for counts in ([23, 9], [1, 1], [1, 14], [3, 1]):
        lengths += counts
        tokens = sum(counts)
        inputs = random(tokens, HEADS, 16), random(tokens, HEADS, 16), random(tokens, 32), random(tokens, 16)
        # Whole numbers, so that scores are exact whatever the order of their sums.
        parts = [torch.randint(-2, 3, shape, generator=generator).float() for shape in _index_shapes(tokens)]
        found = [
            attention.attend_mla(
                0, *inputs, attention.build(hal.Batch(counts, lengths.copy(), table)), index=hal.IndexInputs(*parts)
            )
            for attention in attentions
        ]
        torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
    assert attentions[0].compile_misses == 0


def _index_shapes(tokens: int) -> tuple[tuple[int, ...], ...]:
    return (tokens, INDEX_HEADS, INDEX_WIDTH), (tokens, INDEX_WIDTH), (tokens, INDEX_HEADS)


def test_a_page_of_keys_is_counted_in_the_plans_list() -> None:
    """A page holds fewer index keys than tokens, which is another kernel."""
    device = hal.Device.from_arch("cuda:sm_90", torch_device="cpu")
    pooled = model()
    (layer,) = pooled.layers
    plain = replace(pooled, layers=(replace(layer, indexer=replace(layer.indexer, pool=1)),))
    keys = [set(hal.plan(shape, device, limits=LIMITS, dtype="float32").warmup_keys()) for shape in (pooled, plain)]
    assert keys[0] - keys[1]
