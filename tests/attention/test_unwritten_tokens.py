"""A slot of -1 keeps a token out of the cache and nothing else: its query is answered like any other."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import hal
from hal.common.contract.device_batch import DeviceBatch

from .helpers.histories import BOUNDED
from .helpers.shapes import MLA, MLA_HEADS, gqa, mla, model

LIMITS = hal.Limits(32, 4, 16, block_size=4)


def device_batch(slots: torch.Tensor) -> DeviceBatch:
    """Two decodes after 6 and 2 tokens, and a prefill of three after one."""
    return hal.Batch.from_device(
        torch.tensor([0, 1, 2, 5], dtype=torch.int32),
        torch.tensor([7, 3, 4], dtype=torch.int32),
        torch.arange(24, dtype=torch.int32).view(3, 8),
        slots,
        num_tokens=5,
        max_query_len=3,
        max_seq_len=7,
        num_decodes=2,
    )


SLOTS = torch.tensor([6, 34, 65, 66, 67])
UNWRITTEN = st.lists(st.booleans(), min_size=5, max_size=5)


@BOUNDED
@given(unwritten=UNWRITTEN, seed=st.integers(0, 2**31))
def test_queries_of_unwritten_tokens_see_no_other_keys(unwritten: list[bool], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    attention = hal.plan(model(gqa(0), mla(1)), "cpu", limits=LIMITS, dtype="float32").open(24)
    for cache in attention.caches.values():
        cache.storage.normal_(generator=generator)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(5, *shape, generator=generator)

    plain = draw(4, 8), draw(2, 8), draw(2, 6)
    latent = draw(MLA_HEADS, MLA.kv_lora_rank), draw(MLA_HEADS, MLA.qk_rope_head_dim), draw(MLA.kv_lora_rank)
    rope = draw(MLA.qk_rope_head_dim)

    def run(slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        metadata = attention.build(device_batch(slots))
        return attention.attend(0, *plain, metadata), attention.attend_mla(1, *latent, rope, metadata)

    expected = run(SLOTS)
    written = {key: cache.storage.clone() for key, cache in attention.caches.items()}
    hidden = torch.tensor(unwritten)
    for found, wanted in zip(run(torch.where(hidden, -1, SLOTS)), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert all(torch.equal(cache.storage, written[key]) for key, cache in attention.caches.items())
    for part, width in ((plain[1], 8), (plain[2], 6)):
        part[hidden] += 1 + width
    run(torch.where(hidden, -1, SLOTS))
    for token, slot in enumerate(SLOTS.tolist()):
        kept = torch.equal(attention.caches[0].storage.flatten(0, 1)[slot], written[0].flatten(0, 1)[slot])
        assert kept, (token, slot)
