"""An engine's own tensors instead of hal's pools: the same results, and refusals with both sides' figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hal
from hal.common.stepping.pages import PagePool

from .helpers.engine import Engine
from .helpers.gqa_run import run_step
from .helpers.mla_run import bind as bind_weights
from .helpers.mla_run import run_step as run_mla_step
from .helpers.shapes import gqa, mla, model, sparse

SHAPES = {
    "gqa": model(gqa(0), gqa(1, window=3), gqa(2, kv_source=0)),
    "mla": model(mla(0), sparse(1, topk=3), sparse(2, topk=3, owns=False)),
}
PLACES = ["tight", "wide_pages", "gaps", "packed_layers"]
SCRIPT = [[(0, 5), (1, 9)], [(1, 1), (0, 1), (2, 6)], [(3, 7), (0, 1), (1, 1), (2, 8)]]


def place(specs: tuple[Any, ...], num_blocks: int, how: str) -> dict[Any, torch.Tensor]:
    """Caches as engines keep them: end to end, pages with spare rows, pages apart, or every layer's page inside one."""
    tensors = {}
    for number, spec in enumerate(specs):
        pages, rows, width = spec.shape(num_blocks)
        dtype = getattr(torch, spec.layout.dtype)
        if how == "tight":
            tensors[spec.key] = torch.zeros(pages, rows, width, dtype=dtype)
        elif how == "wide_pages":
            tensors[spec.key] = torch.full((pages, rows + 3, width), torch.nan, dtype=dtype)
        else:
            stride = rows + 5 if how == "gaps" else rows * len(specs)
            storage = torch.full((pages * stride + rows, width), torch.nan, dtype=dtype)
            first = 0 if how == "gaps" else rows * number
            tensors[spec.key] = storage.as_strided((pages, rows, width), (stride * width, width, 1), first * width)
    return tensors


@pytest.mark.parametrize("how", PLACES)
@pytest.mark.parametrize("kind", SHAPES)
def test_bound_tensors_give_what_the_definition_gives(kind: str, how: str) -> None:
    engine = Engine(SHAPES[kind], dtype="float64")
    engine.attention = engine.plan.bind(place(engine.plan.cache_specs(), 40, how))
    assert engine.attention.pages.num_pages == 40
    weights = bind_weights(engine) if kind == "mla" else {}
    for step in SCRIPT:
        if kind == "mla":
            run_mla_step(engine, weights, step)
        else:
            run_step(engine, step)


@pytest.mark.parametrize("block_size", [1, 8, 12, 64])
@pytest.mark.parametrize("kind", SHAPES)
def test_an_engines_page_may_be_of_any_size_that_is_a_multiple_of_the_kernels(kind: str, block_size: int) -> None:
    engine = Engine(SHAPES[kind], dtype="float64", block_size=block_size)
    engine.attention = engine.plan.bind(place(engine.plan.cache_specs(), 80, "gaps"))
    weights = bind_weights(engine) if kind == "mla" else {}
    for step in SCRIPT:
        if kind == "mla":
            run_mla_step(engine, weights, step)
        else:
            run_step(engine, step)


class TestFromDevice:
    """The engine's own tensors and the step as it has it on the device, against the definition."""

    @pytest.mark.parametrize("known", ["bounds", "lengths"])
    @pytest.mark.parametrize("how", PLACES)
    @pytest.mark.parametrize("kind", SHAPES)
    def test_device_batches_run_on_bound_tensors(self, kind: str, how: str, known: str) -> None:
        engine = Engine(SHAPES[kind], dtype="float64")
        engine.attention = engine.plan.bind(place(engine.plan.cache_specs(), 40, how))
        self.run(engine, kind, lambda batch: self.to_device(batch, batch.block_tables, known))

    @pytest.mark.parametrize("how", PLACES)
    @pytest.mark.parametrize("kind", SHAPES)
    def test_a_table_for_each_group_with_ids_of_its_own(self, kind: str, how: str) -> None:
        """As many pages as differ from group to group, and another page of each for the same tokens."""
        engine = Engine(SHAPES[kind], dtype="float64")
        groups = len(engine.plan.groups)
        counts = [40 + 7 * group for group in range(groups)]
        specs = engine.plan.cache_specs()
        tensors: dict[Any, torch.Tensor] = {}
        for group, count in enumerate(counts):
            tensors |= {key: t for key, t in place(specs, count, how).items() if group_of(specs, key) == group}
        engine.attention = engine.plan.bind(tensors)
        assert [pool.num_pages for pool in engine.attention.pools] == counts
        engine.allocate = PagePool(40).allocate

        def to_batch(batch: hal.Batch) -> Any:
            table = batch.block_tables[0]
            renamed = [np.where(table < 40, (table + 5 * group) % count, -1) for group, count in enumerate(counts)]
            return self.to_device(batch, renamed, "lengths")

        self.run(engine, kind, to_batch)

    def run(self, engine: Engine, kind: str, to_batch: Any) -> None:
        weights = bind_weights(engine) if kind == "mla" else {}
        for step in SCRIPT:
            if kind == "mla":
                run_mla_step(engine, weights, step, to_batch=to_batch)
            else:
                run_step(engine, step, to_batch=to_batch)
        assert engine.attention.lost_tokens == engine.attention.lost_pages == 0

    @staticmethod
    def to_device(batch: hal.Batch, tables: Any, known: str) -> Any:
        queries, lengths = batch.query_lens.tolist(), batch.seq_lens.tolist()
        hints = {"query_lens": queries, "seq_lens_upper": lengths} if known == "lengths" else {"num_decodes": 0}
        return hal.Batch.from_device(
            torch.tensor(np.cumsum([0, *queries]), dtype=torch.int32),
            torch.tensor(lengths, dtype=torch.int32),
            [torch.from_numpy(np.ascontiguousarray(table)) for table in tables],
            num_tokens=sum(queries),
            max_query_len=max(queries),
            max_seq_len=max(lengths),
            **hints,
        )


def group_of(specs: tuple[Any, ...], key: Any) -> int:
    return next(spec.group for spec in specs if spec.key == key)


@pytest.mark.parametrize("how", PLACES)
def test_what_is_written_lands_in_the_engines_pages_and_nowhere_else(how: str) -> None:
    engine = Engine(SHAPES["gqa"])
    tensors = {key: tensor.fill_(torch.nan) for key, tensor in place(engine.plan.cache_specs(), 8, how).items()}
    engine.attention = engine.plan.bind(tensors)
    run_step(engine, [(0, 5), (1, 3)])
    written = 0
    for running in engine.requests.values():
        k, v = (running.cached[(0, part)][0] for part in ("k", "v"))
        rows = torch.cat([k.flatten(1), v.flatten(1)], dim=1)
        for position, row in enumerate(rows):
            assert torch.equal(tensors[0][running.pages[position // 4], position % 4], row)
        written += rows.numel()
    everything = torch.empty(0, dtype=torch.float32).set_(tensors[0].untyped_storage())
    assert int((~everything.isnan()).sum()) == written


def without(tensors: dict, key: Any) -> dict:
    return {other: tensor for other, tensor in tensors.items() if other != key}


REFUSALS: dict[str, tuple[Any, list[str]]] = {
    "missing": (lambda t: without(t, 0), ["0", "missing"]),
    "missing_index": (lambda t: without(t, (1, "index")), ["(1, 'index')", "missing"]),
    "unknown": (lambda t: t | {7: t[0]}, ["7", "unknown"]),
    "reader": (lambda t: t | {(2, "index"): t[0]}, ["(2, 'index')", "unknown"]),
    "width": (lambda t: t | {0: torch.zeros(8, 4, 15)}, ["[8, 4, 15]", "16"]),
    "page": (lambda t: t | {0: torch.zeros(8, 3, 16)}, ["4", "3"]),
    "flat": (lambda t: t | {0: torch.zeros(32, 16)}, ["32", "8"]),
    "dtype": (lambda t: t | {0: torch.zeros(8, 4, 16, dtype=torch.bfloat16)}, ["bfloat16", "float32"]),
    "device": (lambda t: t | {0: torch.zeros(8, 4, 16, device="meta")}, ["meta", "cpu"]),
    "pages": (lambda t: t | {0: torch.zeros(9, 4, 16)}, ["9", "8"]),
    "transposed": (lambda t: t | {0: torch.zeros(8, 16, 4).transpose(1, 2)}, ["stride"]),
    "expanded_pages": (lambda t: t | {0: torch.zeros(1, 4, 16).expand(8, 4, 16)}, ["stride"]),
    "expanded_rows": (lambda t: t | {0: torch.zeros(8, 1, 16).expand(8, 4, 16)}, ["stride"]),
    "overlapping_pages": (lambda t: t | {0: torch.zeros(1000).as_strided((8, 4, 16), (32, 16, 1))}, ["stride"]),
    "one_tensor_for_two_layers": (lambda t: t | {1: t[0]}, ["0 and 1", "group 0", "same memory"]),
    "half_rows": (lambda t: t | {0: torch.zeros(2000).as_strided((8, 4, 16), (72, 16, 1))}, ["stride", "72"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_tensors_that_do_not_fit_are_refused_with_both_figures(name: str) -> None:
    change, words = REFUSALS[name]
    plan = Engine(SHAPES["mla"]).plan
    tensors = place(plan.cache_specs(), 8, "tight")
    with pytest.raises(hal.LayoutError) as error:
        plan.bind(change(tensors))
    assert [word for word in words if word not in str(error.value)] == []


def test_groups_may_share_memory_whose_pages_they_take_in_turn() -> None:
    """One tensor for a layer of every group, as engines do that give each page to one group at a time."""
    shape = model(gqa(0), gqa(1, window=3))
    engine = Engine(shape, dtype="float64")
    first, _ = engine.plan.cache_specs()
    (tensor,) = place((first,), 40, "gaps").values()
    engine.attention = engine.plan.bind({0: tensor, 1: tensor})

    def to_batch(batch: hal.Batch) -> Any:
        (table,) = batch.block_tables
        return hal.Batch(batch.query_lens, batch.seq_lens, [table, np.where(table < 0, -1, table + 20)])

    engine.allocate = PagePool(20).allocate
    for step in SCRIPT:
        run_step(engine, step, to_batch=to_batch)


def test_an_absent_devices_plan_binds_nothing() -> None:
    plan = hal.plan(SHAPES["gqa"], "cuda:sm_90", limits=hal.Limits(64, 6, 48), dtype="bfloat16")
    with pytest.raises(hal.BackendError, match="cuda:sm_90 is not on this machine"):
        plan.bind(place(plan.cache_specs(), 8, "tight"))


@pytest.mark.parametrize("key", [0, 1, (1, "index")], ids=str)
def test_a_refusal_names_the_cache(key: Any) -> None:
    plan = Engine(SHAPES["mla"]).plan
    tensors = place(plan.cache_specs(), 8, "tight")
    tensors[key] = tensors[key][:, :, :-1]
    with pytest.raises(hal.LayoutError) as error:
        plan.bind(tensors)
    text = str(error.value)
    assert ("index" in text and "1" in text) if isinstance(key, tuple) else f"{key}" in text.partition("shape")[0]


class TestOpen:
    def test_pools_are_zero_filled_and_as_large_as_asked(self) -> None:
        attention = Engine(SHAPES["mla"]).plan.open(7)
        assert attention.pages.num_pages == attention.pages.num_free == 7
        for spec in attention.plan.cache_specs():
            storage = attention.caches[spec.key].storage
            assert tuple(storage.shape) == spec.shape(7)
            assert not storage.any()

    def test_the_default_holds_every_request_at_full_length(self) -> None:
        plan = Engine(SHAPES["gqa"]).plan
        assert plan.open().pages.num_pages == plan.default_num_blocks() == 6 * 16

    @pytest.mark.parametrize("count", [0, -3])
    def test_a_pool_needs_a_page(self, count: int) -> None:
        with pytest.raises(ValueError, match=f"num_blocks is {count}"):
            Engine(SHAPES["gqa"]).plan.open(count)

    def test_more_than_the_device_has_is_refused_before_allocating(self) -> None:
        plan = hal.plan(SHAPES["gqa"], hal.detect()[-1], limits=hal.Limits(64, 6, 48, block_size=4), dtype="float32")
        with pytest.raises(hal.CapacityError, match=f"{10**12} pages.*at most"):
            plan.open(10**12)

    def test_an_absent_device_opens_nothing(self) -> None:
        shape = SHAPES["gqa"]
        try:
            plan = hal.plan(shape, "cuda:sm_90", limits=hal.Limits(64, 6, 48), dtype="bfloat16")
        except hal.NoBackend:
            pytest.skip("no backend for cuda:sm_90 is written yet")
        with pytest.raises(hal.BackendError, match="cuda:sm_90 is not on this machine"):
            plan.open(4)
