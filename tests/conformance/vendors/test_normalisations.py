"""What adapters do to tensors on the way in and out: each step, taken away, fails against the stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from unittest import mock

import pytest
import torch

from hal.common.backends.registry import find_backend
from hal.common.contract.call_values import KVCache, PagedBatch, Segment
from hal.common.contract.errors import BackendError, LayoutError
from hal.common.contract.layouts import fp8_ds_mla_layout, latent_layout
from hal.common.vendor import AttentionInputs, KernelFacts, segments, tensors
from hal.cuda import flash_attention_calls, flash_attention_inputs, flash_mla_calls
from hal.cuda.flash_mla import FlashMLA
from hal.rocm import aiter_calls
from hal.testing import ConformanceError
from hal.testing.cases import BatchCase
from hal.testing.storage import build_cache, make_generator
from hal.testing.suite.paged import PagedCase, check_paged
from hal.xpu import vllm_kernels_calls

from .helpers.cells import CELLS, Cell, Held
from .helpers.recording import recorded_calls

# What a step's absence shows itself by: a wrong result, a refusal, or tensors that no longer fit each other.
FAILURES = (ConformanceError, RuntimeError, TypeError, ValueError, IndexError)


@dataclass(frozen=True)
class Removal:
    """A step of an adapter replaced by doing nothing. case: part of the ids of the suite's cases that need the step."""

    name: str
    cell: str
    call: str
    case: str
    owner: object
    attribute: str
    instead: Callable[..., object]
    note: str = ""


def as_many_heads(_kernel: KernelFacts, heads: int) -> int:
    return heads


def as_wide(value: int, _multiple: int) -> int:
    return value


def keep(tensor: torch.Tensor, *_args: object, **_kwargs: object) -> torch.Tensor:
    return tensor


def leave_empty_rows(result, lse, lengths, heads, width, out):
    result = result[:, :heads, :width]
    return (result if out is None else out.copy_(result)), None if lse is None else lse[:, :heads]


def keep_padding(result, lse, lengths, heads, width, out):
    return REAL_SETTLE(result, lse, lengths, result.shape[1], result.shape[2], None)


def inclusive_window(inputs: AttentionInputs) -> int | None:
    return inputs.masking.window


def no_bound_is_minus_one(kernel: KernelFacts, inputs: AttentionInputs):
    call = REAL_FA4(kernel, inputs)
    window = tuple(-1 if side is None else side for side in call.kwargs["window_size"])
    return replace(call, kwargs={**call.kwargs, "window_size": window})


def keep_lse_shape(returned, *, is_gather):
    return returned if isinstance(returned, tuple) else (returned, None)


def keep_lse_of_xpu(returned):
    return returned if isinstance(returned, tuple) else (returned, None)


def keep_rows(segment: Segment) -> torch.Tensor:
    return segment.rows


def keep_record_shapes(returned):
    return returned[0].flatten(1, 2), returned[1].flatten(0, 1)


def one_schedule(self, kernel, q, segment):
    return self._schedules.setdefault((), self.resolver.call(flash_mla_calls.build_schedule_call(kernel))[0])


def largest_scores(returned):
    return returned[0], returned[1]


def published_lse(kernel, q, rows, indptr, indices, out, *, softmax_scale, need_lse):
    return REAL_MLA(kernel, q, rows, indptr, indices, out, softmax_scale=softmax_scale, need_lse=False)


def plain_csr(rows: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    indptr = torch.arange(rows.shape[0] + 1, dtype=torch.int32) * rows.shape[1]
    return indptr, rows.reshape(-1)


def given_table(batch: PagedBatch, _num_pages: int) -> torch.Tensor:
    """The table with whatever is in it."""
    return batch.block_table


REAL_SETTLE = tensors.settle_results
REAL_FA4 = flash_attention_calls._spell_fa4
REAL_MLA = aiter_calls.build_mla_call
LATEST = "sm_90-flash_attn_3-3.0.0"
SECOND = "sm_80-flash_attn-2.8.3"
FOURTH = "sm_100-flash_attn_4-4.0.0b36"
FORK = "sm_103-vllm_flash_attn-0.33"
PUBLISHED = "gfx942-aiter-0.1.7.post2.dev18"
CURRENT = "gfx950-aiter-0.1.21"
XPU = "pvc-vllm_xpu_kernels-0.1.16.2"
ROWS = "sm_90-flash_mla-1.0.0"
ROWS_OF_FEW_HEADS = "sm_90-vllm_flash_mla-0.33"
ROWS_OF_COPY = "sm_100-vllm_flash_mla-0.33"
IPEX = "pvc-ipex-2.8.0"
INPUTS = flash_attention_inputs
CALLS = flash_attention_calls

REMOVALS = (
    Removal("empty_rows", SECOND, "paged_attention", "no_keys", tensors, "settle_results", leave_empty_rows),
    Removal("padded_rows", LATEST, "paged_attention", "padded", tensors, "settle_results", leave_empty_rows),
    Removal("empty_rows_varlen", SECOND, "varlen_attention", "no_keys", tensors, "settle_results", leave_empty_rows),
    Removal("empty_lists", CURRENT, "sparse_mla", "all_rows_absent", segments, "settle_results", leave_empty_rows),
    Removal("empty_rows", XPU, "paged_attention", "no_keys", tensors, "settle_results", leave_empty_rows, "lse"),
    Removal("empty_rows", IPEX, "paged_attention", "no_keys", tensors, "settle_results", leave_empty_rows),
    Removal("padded_heads", FOURTH, "sparse_mla", "20heads", segments, "settle_results", keep_padding),
    Removal("heads_compiled_for", FOURTH, "sparse_mla", "20heads", KernelFacts, "padded_heads", as_many_heads),
    Removal("heads_compiled_for", PUBLISHED, "sparse_mla", "20heads", KernelFacts, "padded_heads", as_many_heads),
    Removal("heads_compiled_for", CURRENT, "sparse_mla", "mixed", KernelFacts, "padded_heads", as_many_heads),
    Removal("whole_tiles_of_rows", FOURTH, "sparse_mla", "mixed", INPUTS, "round_up", as_wide),
    Removal("whole_tiles_of_rows", FORK, "sparse_mla", "mixed", INPUTS, "round_up", as_wide),
    Removal("empty_lists", ROWS, "sparse_mla", "all_rows_absent", segments, "settle_results", leave_empty_rows),
    Removal("padded_heads", ROWS, "sparse_mla", "20heads", segments, "settle_results", keep_padding),
    Removal("heads_compiled_for", ROWS, "sparse_mla", "mixed", KernelFacts, "padded_heads", as_many_heads),
    Removal("heads_compiled_for", ROWS_OF_COPY, "sparse_mla", "mixed", KernelFacts, "padded_heads", as_many_heads),
    Removal("whole_tiles_of_rows", ROWS, "sparse_mla", "mixed", tensors, "round_up", as_wide),
    Removal("lse_of_three", ROWS, "sparse_mla", "mixed", flash_mla_calls, "returned_parts", largest_scores),
    Removal("empty_lists", ROWS, "sparse_mla", "all_rows_absent", segments, "settle_results", leave_empty_rows, "records"),
    Removal("heads_compiled_for", ROWS, "sparse_mla", "mixed", KernelFacts, "padded_heads", as_many_heads, "records"),
    Removal("padded_heads", ROWS, "sparse_mla", "20heads", segments, "settle_results", keep_padding, "records"),
    Removal("whole_tiles_of_rows", ROWS, "sparse_mla", "mixed", tensors, "round_up", as_wide, "records"),
    Removal("record_numbers", ROWS, "sparse_mla", "strided_pages", flash_mla_calls, "_record_indices", keep_rows, "records"),
    Removal("lse_of_records", ROWS, "sparse_mla", "mixed", flash_mla_calls, "returned_records", keep_record_shapes, "records"),
    Removal("schedule_per_size", ROWS, "sparse_mla", "page64", FlashMLA, "_find_schedule", one_schedule, "records"),
    Removal("aligned_query", ROWS_OF_FEW_HEADS, "sparse_mla", "views", tensors, "aligned_rows", keep),
    Removal("lse_shape", LATEST, "paged_attention", "mixed", CALLS, "returned_lse", keep_lse_shape),
    Removal("lse_shape", SECOND, "varlen_attention", "mixed", CALLS, "returned_lse", keep_lse_shape),
    Removal("lse_shape", XPU, "paged_attention", "mixed", vllm_kernels_calls, "returned_lse", keep_lse_of_xpu, "lse"),
    Removal("window", LATEST, "paged_attention", "window4", AttentionInputs, "left", property(inclusive_window)),
    Removal("window", FOURTH, "varlen_attention", "window4", AttentionInputs, "left", property(inclusive_window)),
    Removal("freed_pages", LATEST, "paged_attention", "window5_freed_pages", INPUTS, "readable_table", given_table),
    Removal("freed_pages", XPU, "paged_attention", "window5_freed_pages", tensors, "readable_table", given_table, "lse"),
    Removal("no_rope", LATEST, "sparse_mla", "lora512_rope0", INPUTS, "MLA_HEAD_DIM", 0),
    Removal("padded_values", LATEST, "varlen_attention", "widths192_128", tensors, "pad_to", keep),
    Removal("padded_values", XPU, "varlen_attention", "widths192_128", tensors, "pad_to", keep),
    Removal("lse_by_name", CURRENT, "sparse_mla", "mixed", aiter_calls, "build_mla_call", published_lse),
    Removal("compacted_rows", PUBLISHED, "sparse_mla", "mixed", tensors, "rows_to_csr", plain_csr),
    Removal("prefill_path", XPU, "paged_attention", "decode", vllm_kernels_calls, "MIN_PREFILL_QUERIES", 1, "lse"),
    Removal("dense_pages", IPEX, "paged_attention", "mixed", torch.Tensor, "contiguous", keep),
    Removal("dense_query", XPU, "paged_attention", "strided_q", torch.Tensor, "contiguous", keep, "lse"),
    Removal("unbounded_window", FOURTH, "paged_attention", "mixed", CALLS, "_SPELLINGS", {"fa4": no_bound_is_minus_one}),
)


def find(removal: Removal) -> tuple[Cell, Held]:
    (cell,) = [cell for cell in CELLS if cell.id == removal.cell]
    return cell, next(held for held in cell.held if held.call == removal.call and held.note == removal.note)


@pytest.mark.parametrize(
    "removal", REMOVALS, ids=lambda removal: "-".join(filter(None, (removal.name, removal.cell, removal.note)))
)
def test_an_adapter_without_one_of_its_steps_fails_against_the_stand_in(removal: Removal) -> None:
    cell, held = find(removal)
    cases = [case for case in cell.cases(held) if removal.case in case.id]
    assert cases
    with cell.installed():
        backend = cell.adapter(held)(cell.device)
        for case in cases:
            case.check(backend)
        caught = []
        with mock.patch.object(removal.owner, removal.attribute, removal.instead):
            for case in cases:
                try:
                    case.check(backend)
                except FAILURES as error:
                    caught.append(error)
    assert caught


def test_queries_find_their_request_where_one_has_none() -> None:
    """A decode that takes a row per query: requests without a query, and padded queries, must not shift the rows."""
    cell, held = find(Removal("", IPEX, "paged_attention", "", None, "", keep))
    batch = BatchCase(id="gaps", query_lens=(0, 1, 0, 1), seq_lens=(7, 20, 0, 33), padded_tokens=1)
    spec = PagedCase(
        layout="kv", dtype="float16", block_size=16, batch=batch, heads=4, kv_heads=2, widths=(64, 64), need_lse=False
    )
    with cell.installed():
        check_paged(spec, cell.adapter(held)(cell.device))


def make_segment(*rows: int, valid: int) -> Segment:
    cache, _ = build_cache(latent_layout(512, 64, "bfloat16"), (4,), 4, make_generator("segment"))
    return Segment(cache, torch.tensor([rows], dtype=torch.int32), torch.tensor([valid], dtype=torch.int32))


def attend(removal: Removal, segment: Segment, need_lse: bool) -> None:
    cell, held = find(removal)
    q = torch.zeros(1, 4, 576, dtype=torch.bfloat16)
    with cell.installed():
        backend = cell.adapter(held)(cell.device)
        backend.sparse_mla(q, [segment], kv_lora_rank=512, softmax_scale=1.0, need_lse=need_lse)


def test_rows_that_are_not_compacted_are_refused() -> None:
    """The vendors state that a -1 among the valid rows is an access out of bounds; so is a row past the cache."""
    for cell, stranger in product((LATEST, PUBLISHED), (-1, 16, 2**31 - 1)):
        with pytest.raises(BackendError, match=f"row {stranger} in column 1 .* illegal memory access"):
            attend(Removal("", cell, "sparse_mla", "", None, "", keep), make_segment(5, stranger, 6, 7, valid=3), need_lse=False)


def test_pages_of_records_with_gaps_between_them_are_refused() -> None:
    """The library counts records through from the first: pages larger than its own must lie end to end."""
    storage = torch.zeros(3, 130, 656, dtype=torch.uint8)[:, :128]
    cache = KVCache(storage, fp8_ds_mla_layout(512, 64), 128, 128)
    rows, valid = torch.tensor([[5]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    with pytest.raises(LayoutError, match=r"pages of 128 records lie .* end to end"):
        attend(Removal("", ROWS, "sparse_mla", "", None, "", keep, "records"), Segment(cache, rows, valid), need_lse=False)


def test_a_step_plans_its_decodes_anew() -> None:
    (cell,) = [cell for cell in CELLS if cell.id == ROWS]
    cache, _ = build_cache(fp8_ds_mla_layout(512, 64), (4,), 64, make_generator("step"))
    segment = Segment(cache, torch.tensor([[2]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32))
    q = torch.zeros(1, 4, 576, dtype=torch.bfloat16)
    with cell.installed(), recorded_calls() as calls:
        backend = find_backend("cuda:flash_mla")(cell.device)
        for layers in (2, 3):
            backend.prepare_step(None, {})
            for _ in range(layers):
                backend.sparse_mla(q, [segment], kv_lora_rank=512, softmax_scale=1.0)
    assert [call.target.rpartition(":")[2] for call in calls].count("get_mla_metadata") == 2


def test_published_release_has_no_lse() -> None:
    with pytest.raises(BackendError, match="no argument return_lse"):
        attend(Removal("", PUBLISHED, "sparse_mla", "", None, "", keep), make_segment(5, valid=1), need_lse=True)


def test_a_library_is_told_of_no_page_outside_the_cache() -> None:
    """And of the same table for every layer of a step."""
    table = torch.tensor([[3, -1, 4], [-(2**31), 0, 2**31 - 1]], dtype=torch.int32)
    starts, lens = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([9, 9], dtype=torch.int32)
    batch = PagedBatch(starts, lens, table, 1, 9, 2, memo={})
    readable = tensors.readable_table(batch, 4)
    assert readable.tolist() == [[3, 0, 0], [0, 0, 0]]
    assert readable.dtype == torch.int32
    assert tensors.readable_table(batch, 4) is readable
    assert tensors.readable_table(batch, 5).tolist() == [[3, 0, 4], [0, 0, 0]]
    assert table.tolist()[0] == [3, -1, 4]
