"""Buffers beside the caches: named, sized, and large enough for what a step puts into them."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
from hal.common.contract.buffer import Buffer
from hal.common.planning.buffers import context_rows
from hal.common.stepping.chunks import plan_scores
from hal.config import IndexerShape, MLAShape

from .helpers.fakes import gqa_layer, mla_layer, model, sparse_layer

BOUNDED = settings(max_examples=60, deadline=None, derandomize=True)
LIMITS = hal.Limits(1000, 4, 64, block_size=16)


@st.composite
def limits(draw) -> hal.Limits:
    return hal.Limits(draw(st.integers(1, 200_000)), draw(st.integers(1, 300)), 64)


@BOUNDED
@given(
    limits=limits(),
    block_size=st.sampled_from([1, 16, 48, 64, 256]),
    dcp=st.integers(1, 4),
    interleave=st.sampled_from([1, 16]),
    topk=st.none() | st.sampled_from([1, 512, 2048]),
)
def test_context_rows_are_aligned_and_bounded(limits, block_size: int, dcp: int, interleave: int, topk: int | None) -> None:
    parallel = hal.Parallel(dcp=dcp, interleave=interleave)
    rows = context_rows(limits, block_size, parallel, topk)
    alignment = block_size if dcp == 1 else lcm(block_size, dcp * interleave)
    assert rows % alignment == 0
    assert rows >= alignment
    assert rows < max(65536, alignment) + alignment
    if topk is not None:
        assert rows < max(limits.max_num_seqs * topk, block_size) + alignment


@pytest.mark.parametrize(
    ("max_model_len", "max_num_seqs", "topk", "rows"),
    [(4096, 8, None, 32768), (131072, 256, None, 65536), (4096, 2, 2048, 4096), (100, 1, None, 112), (131072, 256, 2048, 65536)],
)
def test_context_rows_are_those_worked_out_by_hand(max_model_len: int, max_num_seqs: int, topk: int | None, rows: int) -> None:
    assert context_rows(hal.Limits(max_model_len, max_num_seqs, 64), 16, hal.Parallel(), topk) == rows


@pytest.mark.parametrize(
    ("shape", "dtype", "nbytes"),
    [((3, 5), "int32", 60), ((2,), "int64", 16), ((4, 4), "bfloat16", 32), ((), "float32", 4), ((0, 9), "float32", 0)],
    ids=str,
)
def test_a_buffer_takes_the_bytes_of_its_shape(shape: tuple[int, ...], dtype: str, nbytes: int) -> None:
    assert Buffer(name="x", shape=shape, dtype=dtype).nbytes == nbytes


def buffers(*layers: hal.config.LayerShape, limits: hal.Limits = LIMITS) -> list[Buffer]:
    return list(hal.plan(model(*layers), "cpu", limits=limits, dtype="float32").buffers)


def test_a_dense_model_has_no_indexers_buffers() -> None:
    names = {buffer.name for buffer in buffers(gqa_layer())}
    assert not {"top-k", "index scores", "context"} & names
    assert {"context", "expanded context"} <= {buffer.name for buffer in buffers(mla_layer())}


@pytest.mark.parametrize("topk", [8, 32])
def test_top_k_is_a_row_per_token(topk: int) -> None:
    (choice,) = [buffer for buffer in buffers(sparse_layer(topk=topk)) if buffer.name == "top-k"]
    assert choice.shape == (64, topk)
    assert choice.dtype == "int32"


def test_every_width_has_its_top_k_buffer() -> None:
    made = buffers(sparse_layer(0, topk=8), sparse_layer(1, topk=32))
    assert sorted(buffer.shape for buffer in made if buffer.name.startswith("top-k")) == [(64, 8), (64, 32)]


def test_context_is_sized_for_the_dense_layers_of_a_mixed_model() -> None:
    """Dense layers of a model with an indexer gather whole contexts, whatever its top-k."""
    dense = max(buffer.nbytes for buffer in buffers(mla_layer(0)) if buffer.name == "context")
    for layers in [(mla_layer(0), sparse_layer(1, topk=8)), (sparse_layer(0, topk=8), mla_layer(1))]:
        assert max(buffer.nbytes for buffer in buffers(*layers) if buffer.name == "context") == dense


@pytest.mark.parametrize("max_logits_bytes", [4, 64, 4000, 4096, 2**20])
def test_scores_fit_their_buffer_and_a_cap_below_one_token_is_refused(max_logits_bytes: int) -> None:
    limits = hal.Limits(1000, 4, 64, block_size=16, max_logits_bytes=max_logits_bytes)
    chunks = plan_scores([1, 63], [1000, 1000], 8, max_logits_bytes // 4)
    needed = 4 * max((chunk.token_stop - chunk.token_start) * chunk.max_seq_len for chunk in chunks)
    if needed > max_logits_bytes:
        with pytest.raises(ValueError, match=f"{max_logits_bytes}.*4000|4000.*{max_logits_bytes}"):
            buffers(sparse_layer(topk=8), limits=limits)
        return
    (scores,) = [buffer for buffer in buffers(sparse_layer(topk=8), limits=limits) if buffer.name == "index scores"]
    assert scores.nbytes >= needed


def test_pooled_choices_are_padded_to_whole_runs() -> None:
    assert IndexerShape(topk=2048, num_heads=64, head_dim=128, pool=4).width == 2176
    assert IndexerShape(topk=2048, num_heads=64, head_dim=128).width == 2048


def test_workspace_is_the_sum_of_the_buffers() -> None:
    plan = hal.plan(model(sparse_layer(topk=8)), "cpu", limits=LIMITS)
    assert plan.workspace_bytes == sum(buffer.nbytes for buffer in plan.buffers)
    assert len({buffer.name for buffer in plan.buffers}) == len(plan.buffers)


@pytest.mark.parametrize("num_groups", [1, 2], ids=["one group", "two groups"])
def test_chosen_rows_are_kept_for_every_group_that_is_read(num_groups: int) -> None:
    layers = (sparse_layer(0, topk=8), sparse_layer(1, topk=8, owns=False))
    if num_groups == 2:
        layers = (layers[0], replace(layers[1], mla=replace(layers[1].mla, kv_lora_rank=256)))
    (rows,) = [buffer for buffer in buffers(*layers) if buffer.name == "chosen rows"]
    assert (rows.shape, rows.dtype, rows.transient) == ((64, num_groups * (8 + 1)), "int32", True)
    assert not [buffer for buffer in buffers(gqa_layer()) if buffer.name == "chosen rows"]


def test_ranks_that_share_tokens_take_no_more_than_one_rank_alone() -> None:
    """DeepSeek-V3.2 at tp 8: what ranks tell each other goes in pieces, so that a long step's stays within a gigabyte."""
    mla = MLAShape(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    layer = replace(
        sparse_layer(),
        num_heads=128,
        num_kv_heads=128,
        head_dim=192,
        v_head_dim=128,
        mla=mla,
        indexer=IndexerShape(topk=2048, num_heads=64, head_dim=128),
    )
    sizes = [
        hal.plan(
            model(layer),
            hal.Device.from_arch("sm_90"),
            limits=hal.Limits(131072, 256, 8192),
            parallel=parallel,
            dtype="bfloat16",
            backend="cuda:triton",
        ).workspace_bytes
        for parallel in (hal.Parallel(tp=8), hal.Parallel(tp=8, dcp=8))
    ]
    assert sizes[1] <= min(10**9, sizes[0])
