"""A config is read when its shape is, and never again: not by selection, planning, opening, building or warming up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import hal
from hal.common.backends.registry import backends, platforms
from tests.conformance.vendors.helpers.cells import CELLS, Cell

SPARSE = {
    "model_type": "deepseek_v32",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "index_topk": 8,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
# The widths that every adapter takes.
WIDE = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
PLAIN = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
COMPOSITE = {"model_type": "some_vl", "dtype": "bfloat16", "text_config": SPARSE}
TARGETS = [
    row.name if row.name == platform.name else f"{platform.name}:{row.name}"
    for platform in platforms().values()
    for row in platform.archs()
]


class Counting(Mapping[str, Any]):
    """A config that counts what is taken from it, at every level."""

    def __init__(self, values: Mapping[str, Any], reads: Counter[str], path: str = "") -> None:
        self.values = values
        self.reads = reads
        self.path = path

    def __getitem__(self, name: str) -> Any:
        value = self.values[name]
        self.reads[self.path + name] += 1
        return Counting(value, self.reads, f"{self.path}{name}.") if isinstance(value, Mapping) else value

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)


@pytest.fixture
def counted() -> tuple[hal.config.ModelShape, Counter[str]]:
    reads: Counter[str] = Counter()
    return hal.read_shape(Counting(COMPOSITE, reads)), reads


def test_planning_on_every_arch_reads_nothing_again(counted: tuple[hal.config.ModelShape, Counter[str]]) -> None:
    shape, reads = counted
    for target in TARGETS:
        device = hal.Device.from_arch(target)
        for layer in shape.layers:
            hal.supports_combination(hal.Request(layer, device, "bfloat16"))
        try:
            hal.plan(shape, device, dtype="bfloat16").to_dict()
        except hal.NoBackend:
            continue
    assert reads["text_config.index_topk"] == 1
    assert {name: count for name, count in reads.items() if count != 1} == {}


WRITTEN = {name: cls for name, cls in backends().items() if cls.capabilities is not None}
LIMITS = hal.Limits(64, 2, 32)


def open_and_warm(
    shape: hal.config.ModelShape, device: hal.Device, dtype: str, backend: str, software: hal.Software | None = None
) -> hal.Plan:
    plan = hal.plan(shape, device, limits=LIMITS, dtype=dtype, backend=backend, software=software)
    attention = plan.open(8)
    attention.build(hal.Batch([3, 1], [3, 5], [[0], [1]]))
    if backends()[backend].capabilities.compiled_launches:
        plan.warmup_keys()
    attention.warm_up()
    return plan


@pytest.mark.parametrize("name", sorted(name for name, cls in WRITTEN.items() if cls.provides is None))
def test_running_reads_nothing_again(name: str, counted: tuple[hal.config.ModelShape, Counter[str]]) -> None:
    shape, reads = counted
    platform = platforms()[backends()[name].platform]
    # The platform's archs are alike here: the first that the backend serves will do, its tensors on the CPU.
    for row in platform.archs():
        device = hal.Device.from_arch(f"{platform.name}:{row.name}" if row.name != platform.name else row.name, "cpu")
        if not hal.supports_combination(hal.Request(shape.layer(0), device, "float32"))[name]:
            break
    else:
        pytest.fail(f"{name} serves this layer on no arch of its platform")
    open_and_warm(shape, device, "float32", name)
    assert reads["text_config.index_topk"] == 1
    assert {key: count for key, count in reads.items() if count != 1} == {}


@pytest.mark.parametrize("config", [SPARSE | WIDE, PLAIN], ids=["sparse_mla", "attention"])
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_running_on_a_vendors_library_reads_nothing_again(cell: Cell, config: dict[str, Any]) -> None:
    reads: Counter[str] = Counter()
    shape = hal.read_shape(Counting({**COMPOSITE, "text_config": config}, reads))
    request = hal.Request(shape.layer(0), cell.device, "bfloat16", software=cell.software)
    if hal.supports_combination(request)[cell.backend]:
        pytest.skip(f"{cell.backend} does not serve this layer on {cell.arch} with {cell.library}")
    with cell.installed():
        plan = open_and_warm(shape, cell.device, "bfloat16", cell.backend, cell.software)
    assert any(cell.backend in selection.providers.values() for selection in plan.selections)
    assert reads["text_config.num_attention_heads"] == 1
    assert {key: count for key, count in reads.items() if count != 1} == {}


def test_every_backend_that_calls_a_library_has_a_cell() -> None:
    assert {cell.backend for cell in CELLS} == {name for name, cls in WRITTEN.items() if cls.provides is not None}
