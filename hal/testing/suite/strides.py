"""Cases of tensors that are not dense: every tensor of every call, in every form that a view can have.

The answer is the dense one or a LayoutError before anything is written; nothing beside a tensor is read or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.errors import LayoutError
from hal.testing.arguments import Arguments, Path, find_tensors, make_call, put, read_path, show_path
from hal.testing.case import Case, Sizes, describe
from hal.testing.compare import ConformanceError, expect, expect_close, expect_identical
from hal.testing.forms import FORMS, View, copy_as_it_lies, expand, overlap

from .samples import Sample, samples


def cases(capabilities: Capabilities, sizes: Sizes) -> Iterator[Case]:
    """A case for every call of a kind that the declaration calls for."""
    for sample in samples(capabilities, sizes):
        yield Case(call=sample.call, id=describe(sample.call, "views", sample.note), check=partial(check_views, sample))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a call returned, and what it wrote."""

    results: tuple[torch.Tensor, ...]
    written: Mapping[Path, torch.Tensor]


def check_views(sample: Sample, backend: Backend) -> None:
    """Raise ConformanceError unless this holds: the call with its tensors in each form does what it does with dense ones."""
    arguments = sample.make(backend)
    tensors = dict(find_tensors(arguments))
    usual = _answer(sample, arguments, backend)
    for name, form in FORMS.items():
        views = {path: form(tensor) for path, tensor in tensors.items() if _can_be(arguments, path, form(tensor))}
        _check_together(name, sample, arguments, views, usual, backend)
    for path, tensor in tensors.items():
        if path in sample.written:
            shared = {f"expanded{dim}": expand(tensor, dim) for dim in _repeatable(tensor)} | {"overlapping": overlap(tensor)}
            for kind, view in shared.items():
                is_served = _check(kind, sample, arguments, {path: view}, usual, backend)
                expect(not is_served, f"{show_path(path)} {kind}: written, though elements share places; expected a LayoutError")
        else:
            _check_repeats(path, sample, arguments, backend)
    if ("out",) in sample.written and "q" in arguments:
        _check_beside(sample, arguments, usual, backend)


def _check_beside(sample: Sample, arguments: Arguments, usual: _Answer, backend: Backend) -> None:
    """An out beside the queries in one tensor, as parts of a fused projection are, and one that lies over them."""
    q, out = arguments["q"], arguments["out"]
    width = q.shape[2]
    fused = torch.cat([q, out.new_full(out.shape, torch.nan)], dim=2)
    before, inputs = fused.clone(), fused[..., :width]
    over = fused[..., 1 : 1 + out.shape[2]]
    expect(
        not _check("out over q", sample, {**arguments, "q": inputs}, {("out",): View(tensor=over, memory=fused)}, usual, backend),
        "out lies in the memory of q and was written; expected a LayoutError",
    )
    beside = View(tensor=fused[..., width:], memory=fused)
    _check("out beside q", sample, {**arguments, "q": inputs}, {("out",): beside}, usual, backend)
    expect_identical(inputs, before[..., :width], "q beside an out")


def _check_repeats(path: Path, sample: Sample, arguments: Arguments, backend: Backend) -> None:
    """An input that repeats itself has other values, so a dense copy of it says what the answer is."""
    tensor, blank = read_path(arguments, path), sample.blank.get(path)
    for dim in _repeatable(tensor):
        view = expand(tensor if blank is None else torch.full_like(tensor, blank), dim)
        if _can_be(arguments, path, view):
            right = _answer(sample, put(arguments, path, view.tensor.contiguous()), backend)
            _check(f"{show_path(path)} expanded{dim}", sample, arguments, {path: view}, right, backend)


def _repeatable(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(dim for dim, size in enumerate(tensor.shape) if size > 1)


def _answer(sample: Sample, arguments: Arguments, backend: Backend) -> _Answer:
    written = {path: copy_as_it_lies(read_path(arguments, path)) for path in sample.written}
    result = make_call(backend, sample.call, _with(arguments, written))
    return _Answer(results=_tensors(result), written=written)


def _can_be(arguments: Arguments, path: Path, view: View) -> bool:
    """Whether what holds a tensor takes it in this form: a cache says by itself which storage it can read."""
    try:
        put(arguments, path, view.tensor)
    except LayoutError:
        return False
    return True


def _check_together(
    name: str, sample: Sample, arguments: Arguments, views: Mapping[Path, View], usual: _Answer, backend: Backend
) -> None:
    """All tensors in one form at once; fewer where that is refused, each by itself where it is wrong: none may hide another."""
    try:
        if _check(name, sample, arguments, views, usual, backend):
            return
        inputs = {path: view for path, view in views.items() if path not in sample.written}
        apart = views.keys() - inputs.keys()
        if not _check(name, sample, arguments, inputs, usual, backend):
            apart = set(views)
        for path in apart:
            _check(name, sample, arguments, {path: views[path]}, usual, backend)
    except ConformanceError:
        for path, view in views.items():
            _check(f"{show_path(path)} {name}", sample, arguments, {path: view}, usual, backend)
        raise


def _check(name: str, sample: Sample, arguments: Arguments, views: Mapping[Path, View], usual: _Answer, backend: Backend) -> bool:
    """Whether the call was served and not refused; ConformanceError where it was served wrongly, or wrote and refused."""
    memory = {path: view.memory.clone() for path, view in views.items()}
    others = {path: copy_as_it_lies(read_path(arguments, path)) for path in sample.written if path not in views}
    before = {path: tensor.clone() for path, tensor in others.items()}
    try:
        given = _with(arguments, others | {path: view.tensor for path, view in views.items()})
        results = _tensors(make_call(backend, sample.call, given))
    except LayoutError:
        for path, view in views.items():
            expect_identical(view.memory, memory[path], f"{name}: the memory of {show_path(path)} after a LayoutError")
        for path, tensor in others.items():
            expect_identical(tensor, before[path], f"{name}: {show_path(path)} after a LayoutError")
        return False
    for number, (found, right) in enumerate(zip(results, usual.results, strict=True)):
        _expect_same(found, right, f"{name}: result {number}")
    for path, right in usual.written.items():
        _expect_same(views[path].tensor if path in views else others[path], right, f"{name}: {show_path(path)}")
    for path, view in views.items():
        kept = view.margin if path in sample.written else slice(None)
        expect_identical(view.memory[kept], memory[path][kept], f"{name}: memory of {show_path(path)} that no call may write")
    return True


def _with(arguments: Arguments, tensors: Mapping[Path, torch.Tensor]) -> Arguments:
    for path, tensor in tensors.items():
        arguments = put(arguments, path, tensor)
    return arguments


def _tensors(result: object) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for _, tensor in find_tensors(result))


def _expect_same(found: torch.Tensor, right: torch.Tensor, what: str) -> None:
    """Raise ConformanceError unless this holds: the same numbers to a tolerance, NaN where there is NaN."""
    expect(found.dtype == right.dtype, f"{what} is {found.dtype}; expected {right.dtype}")
    if not found.dtype.is_floating_point or found.element_size() == 1:
        expect_identical(found, right, what)
        return
    found, right = found.detach().cpu(), right.detach().cpu()
    expect(bool((found.isnan() == right.isnan()).all()), f"{what}: NaN in other places than with dense tensors")
    numbers = [tensor.nan_to_num(0, torch.inf, -torch.inf) for tensor in (found, right)]
    expect_close(numbers[0], numbers[1], found.dtype, what)
