"""One builder for everyone: the same batches give the same StepMetadata whatever written backend is opened, field by field.

Only the runs of MLA prefills may differ, and only between backends whose varlen kernels do and do not take a choice of keys
(masked_varlen): without one, a request that the indexer prunes stays absorbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest
import torch

import hal
from hal.common.backends.registry import backends, platforms
from hal.config import ModelShape, read_shape

from .helpers.cells import CELLS, Cell

COMMON = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 16}
LATENT = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "q_lora_rank": 64,
}
INDEXER = {"index_topk": 128, "index_n_heads": 16, "index_head_dim": 128}
SHAPES: dict[str, dict[str, Any]] = {
    "attention": COMMON | {"num_key_value_heads": 2, "head_dim": 64},
    "mla": COMMON | LATENT,
    "sparse_mla": COMMON | LATENT | INDEXER,
}
# 256 is the one page size that every backend here reads.
LIMITS = hal.Limits(1024, 8, 768, block_size=256)
TABLES = [[3, 5, 0, 0], [1, 7, 9, 11], [6, 0, 0, 0], [2, 8, 0, 0]]
BATCHES: dict[str, Callable[[], hal.Batch]] = {
    "decode_only": lambda: hal.Batch([1, 1, 1, 1], [300, 777, 1, 257], TABLES),
    "mixed_unordered": lambda: hal.Batch([5, 1, 200, 1], [5, 700, 200, 300], TABLES),
    "ragged_prefill_with_context": lambda: hal.Batch([300, 7, 130, 2], [310, 900, 130, 400], TABLES),
    "zero_length": lambda: hal.Batch([0, 3, 0, 1], [0, 3, 256, 90], TABLES),
    "padded": lambda: hal.Batch([1, 4, 1, 60], [9, 400, 256, 60], TABLES, num_tokens_padded=96, num_reqs_padded=7),
    "prefilling_one_token": lambda: hal.Batch([1, 1, 1, 1], [1, 700, 256, 300], TABLES, is_prefilling=[True, False, False, True]),
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A backend to open: the cell whose stand-ins it needs, None where it calls no library."""

    backend: str
    device: hal.Device
    cell: Cell | None = None

    def __str__(self) -> str:
        return self.backend if self.cell is None else f"{self.backend}-{self.cell.id}"

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Its library importable."""
        with nullcontext() if self.cell is None else self.cell.installed():
            yield

    @property
    def software(self) -> hal.Software | None:
        """Its library, and no other."""
        return None if self.cell is None else self.cell.software

    def serves(self, shape: ModelShape) -> bool:
        """Whether it serves the shape's layers."""
        request = hal.Request(shape.layer(0), self.device, "bfloat16", block_size=LIMITS.block_size, software=self.software)
        return not hal.supports_combination(request)[self.backend]


def list_opened() -> list[Opened]:
    """Every written backend: one that calls libraries in each of its cells, another on the first arch of its platform."""
    found = [Opened(cell.backend, cell.device, cell) for cell in CELLS]
    for name, cls in backends().items():
        if cls.capabilities is not None and cls.provides is None:
            arch = platforms()[cls.platform].archs()[-1].name
            target = arch if arch == cls.platform else f"{cls.platform}:{arch}"
            found.append(Opened(name, hal.Device.from_arch(target, torch_device="cpu")))
    return found


OPENED = {str(each): each for each in list_opened()}
SERVED = [
    pytest.param(each, kind, id=f"{name}-{kind}")
    for name, each in OPENED.items()
    for kind, config in SHAPES.items()
    if each.serves(read_shape(config))
]


def build(opened: Opened, shape: ModelShape, batch: hal.Batch) -> Any:
    with opened.installed():
        terms = {"limits": LIMITS, "backend": opened.backend, "software": opened.software}
        plan = hal.plan(shape, opened.device, dtype="bfloat16", **terms)
        assert {selection.backend for selection in plan.selections} == {opened.backend}
        return freeze(plan.open(num_blocks=16).build(batch))


def freeze(value: Any) -> Any:
    """The metadata as plain values; its owner, the builder that made it, is left out."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.name != "owner"]
        return {name: freeze(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: freeze(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(freeze(item) for item in value)
    return value


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("opened", "kind"), [served for served in SERVED if served.values[0].backend != "cpu"])
def test_the_same_batch_gives_the_same_metadata(opened: Opened, kind: str, batch: str) -> None:
    shape = read_shape(SHAPES[kind])
    found, expected = (build(each, shape, BATCHES[batch]()) for each in (opened, OPENED["cpu"]))
    assert found == expected


def pruned_runs(metadata: dict[str, Any], shape: ModelShape) -> list[dict[str, Any]]:
    """The prefill's runs that hold a request longer than the indexer's top-k."""
    prefill, topk = metadata["prefill"], shape.layer(0).indexer.topk
    runs = [] if prefill is None else [run for each in prefill["runs"].values() for run in each]
    return [run for run in runs if run["max_seq_len"] > topk]


def test_every_written_backend_is_opened() -> None:
    served = {served.values[0].backend for served in SERVED}
    assert served == {name for name, cls in backends().items() if cls.capabilities is not None}


def test_a_pruned_prefill_is_decompressed_in_part() -> None:
    """So that the metadata compared above holds both forms of its runs."""
    shape = read_shape(SHAPES["sparse_mla"])
    metadata = build(OPENED["cpu"], shape, BATCHES["ragged_prefill_with_context"]())
    assert {run["form"] for run in pruned_runs(metadata, shape)} == {"absorbed", "decompressed"}
