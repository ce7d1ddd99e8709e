"""The cases of tensors that are not dense: none is forgotten, and a kernel that takes a view for dense memory is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch

from hal import LayoutError
from hal.common.backends.registry import find_backend
from hal.common.contract.backend import CALLS
from hal.common.contract.call_values import CompressedBatch, KVCache, PagedBatch, Segment, VarlenBatch
from hal.common.contract.compressor import Compressor
from hal.common.contract.dense import dense_numbers, shares_places
from hal.common.contract.device import Device
from hal.common.contract.errors import BatchError
from hal.testing import SMALL, ReferenceBackend
from hal.testing.arguments import Path, find_tensors, parameters, put, read_path, show_path
from hal.testing.case import fit_sizes
from hal.testing.compare import ConformanceError
from hal.testing.suite.samples import Sample, samples
from hal.testing.suite.strides import check_views

CPU = find_backend("cpu")
SAMPLES = tuple(samples(CPU.capabilities, fit_sizes(CPU.capabilities, SMALL)))
# No layout of index keys, states or entries keeps scales beside its rows.
SCALELESS = {"index_scores": {"cache.scale"}, "compress_states": {"states.scale", "entries.scale"}}
HOLDERS = {each.__name__: each for each in (KVCache, PagedBatch, VarlenBatch, CompressedBatch, Segment, Compressor)}


def names_of(sample: Sample) -> set[str]:
    found = find_tensors(sample.make(CPU(Device.from_arch("cpu"))))
    return {show_path(tuple(key for key in path if isinstance(key, str))) for path, _ in found}


def names_in(annotation: str, name: str) -> Iterator[str]:
    """The tensors that a parameter or field may hold, by its annotation."""
    if "Tensor" in annotation:
        yield name
    for word, holder in HOLDERS.items():
        if word in annotation:
            hints = (
                holder.__annotations__
                if word == "Segment"
                else {field.name: field.type for field in fields(holder) if field.init}
            )
            for part, kind in hints.items():
                yield from names_in(str(kind), f"{name}.{part}")


@pytest.mark.parametrize("call", sorted(CALLS))
def test_every_tensor_that_a_call_can_be_given_is_looked_at(call: str) -> None:
    wanted = {name for one in parameters(call) for name in names_in(str(one.annotation), one.name)}
    wanted -= SCALELESS.get(call, set())
    looked_at = set().union(*(names_of(sample) for sample in SAMPLES if sample.call == call))
    assert looked_at == wanted


class Misreads:
    """The CPU backend, which takes one tensor's memory for dense where it is not."""

    def __init__(self, call: str, path: Path) -> None:
        self.device = Device.from_arch("cpu")
        self.name = "misreads"
        self._backend, self._call, self._path = CPU(self.device), call, path

    def __getattr__(self, call: str) -> Callable[..., Any]:
        def method(*given: Any, **named: Any) -> Any:
            plain = [one for one in parameters(call) if one.kind is not one.KEYWORD_ONLY]
            arguments = {one.name: value for one, value in zip(plain, given, strict=False)} | named
            if plain[-1].kind is plain[-1].VAR_POSITIONAL:
                arguments[plain[-1].name] = given[len(plain) - 1 :]
            tensor = read_path(arguments, self._path)
            dense = tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride(), tensor.storage_offset())
            arguments = put(arguments, self._path, dense)
            parts = arguments.pop("parts", ())
            ordered = [arguments.pop(one.name) for one in plain if one.name in arguments]
            return getattr(self._backend, call)(*ordered, *parts, **arguments)

        return method


MISREAD = [
    pytest.param(sample, path, id=f"{sample.call}-{sample.note}-{show_path(path)}")
    for sample in SAMPLES
    for path, tensor in find_tensors(sample.make(CPU(Device.from_arch("cpu"))))
    # A cache's own constructor refuses what is not rows, a write scales that are none, and key ranges take lengths' place.
    if tensor.numel() > 1
    and path[-1] != "storage"
    and (path[-1], sample.note[-10:]) != ("seq_lens", "key_ranges")
    and (path[-1], sample.call) != ("scale", "write_cache")
]


@pytest.mark.parametrize(("sample", "path"), MISREAD)
def test_a_call_that_takes_a_view_for_dense_memory_is_found(sample: Sample, path: Path) -> None:
    with pytest.raises((ConformanceError, RuntimeError)):
        check_views(sample, Misreads(sample.call, path))  # type: ignore[arg-type]


class WritesTheGap(ReferenceBackend):
    def paged_attention(self, *given: Any, out: torch.Tensor, **named: Any) -> Any:
        result = super().paged_attention(*given, out=out, **named)
        if not out.is_contiguous():
            out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)[-1] = 0
        return result


class WritesBeforeItRefuses(ReferenceBackend):
    def paged_attention(self, *given: Any, out: torch.Tensor, **named: Any) -> Any:
        if out.is_contiguous():
            return super().paged_attention(*given, out=out, **named)
        out[0, 0, 0] = 0
        raise LayoutError("out is not dense")


@pytest.mark.parametrize("cls", [WritesTheGap, WritesBeforeItRefuses])
def test_a_call_that_writes_what_it_may_not_is_found(cls: type[ReferenceBackend]) -> None:
    sample = next(sample for sample in SAMPLES if sample.call == "paged_attention")
    with pytest.raises(ConformanceError, match="memory"):
        check_views(sample, cls(Device.from_arch("cpu")))


VIEWS: dict[str, tuple[Callable[[], torch.Tensor], bool]] = {
    "dense": (lambda: torch.zeros(3, 4, 5), False),
    "transposed": (lambda: torch.zeros(3, 4, 5).permute(2, 0, 1), False),
    "sliced": (lambda: torch.zeros(6, 4, 9)[::2, :, 1::3], False),
    "empty": (lambda: torch.zeros(1, 0).expand(5, 0), False),
    "one_row_repeated_once": (lambda: torch.zeros(1, 4).expand(1, 4), False),
    "expanded": (lambda: torch.zeros(3, 1, 5).expand(3, 4, 5), True),
    "unfolded": (lambda: torch.zeros(12).unfold(0, 4, 2), True),
    "diagonal_windows": (lambda: torch.zeros(20).as_strided((3, 4), (1, 1)), True),
}


@pytest.mark.parametrize("name", VIEWS)
def test_elements_that_share_places_are_told_from_views(name: str) -> None:
    make, shares = VIEWS[name]
    tensor = make()
    assert shares_places(tensor.shape, tensor.stride()) is shares


def test_numbers_past_32_bits_stay_strangers() -> None:
    given = torch.tensor([1, 2**32, -(2**40)])
    assert dense_numbers("ids", given).tolist() == [1, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("given", [torch.zeros(3), torch.zeros(3, 1, dtype=torch.int32), torch.zeros(2, dtype=torch.int16)])
def test_what_is_no_list_of_whole_numbers_is_refused(given: torch.Tensor) -> None:
    with pytest.raises(BatchError, match=r"lengths is .*expected int32 or int64 \[n\]"):
        dense_numbers("lengths", given)
