"""Plan, builder, caches and both phases through adapters, over the portable calls in the interpreter: what the CPU gives.

The interpreter is chosen when a kernel is decorated, so this file runs in a process of its own, with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os

import pytest
import torch

import hal
from hal.config import ModelShape, read_shape

from .helpers.cells import CELLS, Cell

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run this file alone, with TRITON_INTERPRET=1")

HEADS, KV_HEADS, NOPE, VALUE, INDEX_HEADS, INDEX_DIM = 4, 2, 32, 32, 16, 64
COMMON = {"num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": HEADS, "vocab_size": 16}
SHAPES = {
    "attention": {**COMMON, "num_key_value_heads": KV_HEADS, "head_dim": 64},
    "sparse_mla": {
        **COMMON,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": 64,
        "v_head_dim": VALUE,
        "q_lora_rank": 64,
        "index_topk": 128,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_DIM,
    },
}
STEPS = (((3, 1, 5), (3, 1, 5)), ((1, 1, 2), (4, 2, 7)), ((1, 130, 1), (5, 132, 8)))
# As on a machine that has this library alone; None: as on one that has all.
Software = hal.Software | None
LIMITS = hal.Limits(256, 4, 256, block_size=256)


def random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator).bfloat16()


def attend(attention: hal.Attention, shape: ModelShape, metadata: hal.StepMetadata, generator: torch.Generator) -> torch.Tensor:
    tokens = metadata.num_tokens
    if not shape.is_mla:
        k, v = random(generator, tokens, KV_HEADS, 64), random(generator, tokens, KV_HEADS, 64)
        return attention.attend(0, random(generator, tokens, HEADS, 64), k, v, metadata)
    index = hal.IndexInputs(
        random(generator, tokens, INDEX_HEADS, INDEX_DIM),
        random(generator, tokens, INDEX_DIM),
        torch.randn(tokens, INDEX_HEADS, generator=generator),
    )
    parts = [(tokens, HEADS, NOPE), (tokens, HEADS, 64), (tokens, 512), (tokens, 64)]
    return attention.attend_mla(0, *(random(generator, *part) for part in parts), metadata, index=index)


def open_plan(
    shape: ModelShape, device: hal.Device, generator: torch.Generator, software: Software, kv_layout: str = "auto"
) -> hal.Attention:
    plan = hal.plan(shape, device, dtype="bfloat16", limits=LIMITS, software=software, kv_layout=kv_layout)
    attention = plan.open(num_blocks=8)
    if shape.is_mla:
        w_uk, w_uv = (torch.randn(HEADS, width, 512, generator=generator) * 0.05 for width in (NOPE, VALUE))
        attention.bind_weights(0, w_uk, w_uv)
    return attention


def run(
    shape: ModelShape, device: hal.Device, software: Software = None, kv_layout: str = "auto"
) -> tuple[hal.Plan, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    attention = open_plan(shape, device, generator, software, kv_layout)
    tables = torch.tensor([[3], [1], [6]], dtype=torch.int32).numpy()
    results = []
    for query_lens, seq_lens in STEPS:
        metadata = attention.build(hal.Batch(list(query_lens), list(seq_lens), tables))
        results.append(attend(attention, shape, metadata, generator).float())
    return attention.plan, results


def run_with_missing_page(
    shape: ModelShape, device: hal.Device, block: int, software: Software
) -> tuple[hal.Attention, torch.Tensor]:
    """The last two steps' device batch, in which the second of three requests has some id in place of its page."""
    generator = torch.Generator().manual_seed(0)
    attention = open_plan(shape, device, generator, software)
    for cache in attention.caches.values():
        cache.storage[0] = 1e4
    out = torch.empty(0)
    for (query_lens, seq_lens), page in zip(STEPS[:2], (1, block), strict=True):
        starts = torch.tensor([0, *query_lens]).cumsum(0).int()
        table = torch.tensor([[3], [page], [6]], dtype=torch.int32)
        sizes = {"num_tokens": sum(query_lens), "max_query_len": max(query_lens), "max_seq_len": max(seq_lens)}
        hints = {"num_decodes": 0, "query_lens": query_lens, "seq_lens_upper": seq_lens}
        lengths = torch.tensor(seq_lens, dtype=torch.int32)
        metadata = attention.build(hal.Batch.from_device(starts, lengths, table, **sizes, **hints))
        out = attend(attention, shape, metadata, generator)
    return attention, out.float()


def require_served(cell: Cell, kind: str, shape: ModelShape) -> None:
    request = hal.Request(shape.layer(0), cell.device, "bfloat16", block_size=LIMITS.block_size, software=cell.software)
    if hal.supports_combination(request)[cell.backend]:
        pytest.skip(f"{cell.backend} does not serve {kind} on {cell.arch} with {cell.library}")


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_steps_match_the_cpu(cell: Cell, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = read_shape(SHAPES[kind])
    require_served(cell, kind, shape)
    _, expected = run(shape, hal.Device.from_arch("cpu"))
    monkeypatch.setenv("HAL_BACKEND", cell.backend)
    with cell.installed():
        plan, found = run(shape, cell.device, cell.software)
    assert plan.selections[0].backend == cell.backend
    for result, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(result, wanted, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if any(held.note == "records" for held in cell.held)], ids=lambda cell: cell.id
)
def test_steps_over_records_match_the_cpu(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = read_shape(SHAPES["sparse_mla"])
    _, expected = run(shape, hal.Device.from_arch("cpu"), kv_layout="fp8_ds_mla")
    monkeypatch.setenv("HAL_BACKEND", cell.backend)
    with cell.installed():
        plan, found = run(shape, cell.device, cell.software, kv_layout="fp8_ds_mla")
    assert plan.selections[0].providers["sparse_mla.decode"] == cell.backend
    for result, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(result, wanted, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_a_request_that_misses_its_page_sees_no_key(cell: Cell, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = read_shape(SHAPES[kind])
    require_served(cell, kind, shape)
    monkeypatch.setenv("HAL_BACKEND", cell.backend)
    with cell.installed():
        check_missing_page(shape, cell.device, cell.software)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90", "rocm:gfx942", "xpu:pvc"])
def test_portable_calls_show_such_a_request_no_key_either(target: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAL_BACKEND", target if target == "cpu" else f"{target.partition(':')[0]}:triton")
    check_missing_page(read_shape(SHAPES[kind]), hal.Device.from_arch(target, torch_device="cpu"))


def check_missing_page(shape: ModelShape, device: hal.Device, software: Software = None) -> None:
    """Its rows are zero whatever page 0 holds, which nobody writes to; the others' are what they are with every page."""
    _, whole = run_with_missing_page(shape, device, 1, software)
    attention, out = run_with_missing_page(shape, device, -1 if shape.is_mla else 8, software)
    assert (attention.lost_pages, attention.lost_tokens) == (1, 1)
    assert not out[1].any()
    assert torch.equal(out[[0, 2, 3]], whole[[0, 2, 3]])
    assert all((cache.storage[0] == 1e4).all() for cache in attention.caches.values() if cache.storage.is_floating_point())
