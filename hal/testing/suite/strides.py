"""Cases of tensors that are not dense: every tensor of every call, in every form that a view can have.

The answer is the dense one or a LayoutError before anything is written; nothing beside a tensor is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Something that takes tensors: what makes of its arguments its results, and the arguments, tensors dense.

    written, blank: as a Sample's. beside: the argument that holds the queries, from which an `out` may not be told apart.
    """

    run: Callable[[Arguments], object]
    arguments: Arguments
    written: Set[Path] = frozenset()
    blank: Mapping[Path, int] = field(default_factory=dict)
    beside: str = "q"


def check_views(sample: Sample, backend: Backend) -> None:
    """Raise ConformanceError unless this holds: the call with its tensors in each form does what it does with dense ones."""
    run = partial(make_call, backend, sample.call)
    check_call(Call(run=run, arguments=sample.make(backend), written=sample.written, blank=sample.blank))


def check_call(call: Call) -> None:
    """Raise ConformanceError unless this holds: any call with its tensors in each form gives what it gives with dense ones."""
    arguments = call.arguments
    tensors = dict(find_tensors(arguments))
    usual = check_forms(call, FORMS)
    for path, tensor in tensors.items():
        if path in call.written:
            shared = {f"expanded{dim}": expand(tensor, dim) for dim in _repeatable(tensor)} | {"overlapping": overlap(tensor)}
            for kind, view in shared.items():
                is_served = _check(kind, call, arguments, {path: view}, usual)
                expect(not is_served, f"{show_path(path)} {kind}: written, though elements share places; expected a LayoutError")
        else:
            _check_repeats(path, call, arguments)
    if ("out",) in call.written and call.beside in arguments:
        _check_beside(call, arguments, usual)


def check_forms(call: Call, names: Iterable[str]) -> _Answer:
    """The answer to dense tensors, or ConformanceError: it is that to some of FORMS, too."""
    arguments = call.arguments
    usual = _answer(call, arguments)
    for name in names:
        forms = {path: FORMS[name](tensor) for path, tensor in find_tensors(arguments)}
        views = {path: view for path, view in forms.items() if _can_be(arguments, path, view)}
        _check_together(name, call, arguments, views, usual)
    return usual


def _check_beside(call: Call, arguments: Arguments, usual: _Answer) -> None:
    """An out beside the queries in one tensor, as parts of a fused projection are, and ones that lie over them."""
    q, out = arguments[call.beside], arguments["out"]
    width = q.shape[2]
    fused = torch.cat([q, out.new_full(out.shape, torch.nan)], dim=2)
    before, inputs = fused.clone(), fused[..., :width]
    over = View(tensor=fused[..., 1 : 1 + out.shape[2]], memory=fused)
    _expect_refused("out over the queries", {**arguments, call.beside: inputs}, call, over, usual)
    beside = View(tensor=fused[..., width:], memory=fused)
    _check("out beside the queries", call, {**arguments, call.beside: inputs}, {("out",): beside}, usual)
    expect_identical(inputs, before[..., :width], "queries beside an out")
    # A token's result over the queries of the last one, which a step in several parts reads when it has written the first.
    memory = torch.cat([q.flatten(), out.new_full((out.numel(),), torch.nan)])
    last = View(tensor=memory[q[:-1].numel() :][: out.numel()].view(out.shape), memory=memory)
    inputs = memory[: q.numel()].view(q.shape)
    _expect_refused("out from the last token's queries on", {**arguments, call.beside: inputs}, call, last, usual)


def _expect_refused(name: str, arguments: Arguments, call: Call, out: View, usual: _Answer) -> None:
    is_served = _check(name, call, arguments, {("out",): out}, usual)
    expect(not is_served, f"{name} was written, in memory that the call still reads; expected a LayoutError")


def _check_repeats(path: Path, call: Call, arguments: Arguments) -> None:
    """An input that repeats itself has other values, so a dense copy of it says what the answer is."""
    tensor, blank = read_path(arguments, path), call.blank.get(path)
    for dim in _repeatable(tensor):
        view = expand(tensor if blank is None else torch.full_like(tensor, blank), dim)
        if _can_be(arguments, path, view):
            right = _answer(call, put(arguments, path, view.tensor.contiguous()))
            _check(f"{show_path(path)} expanded{dim}", call, arguments, {path: view}, right)


def _repeatable(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(dim for dim, size in enumerate(tensor.shape) if size > 1)


def _answer(call: Call, arguments: Arguments) -> _Answer:
    written = {path: copy_as_it_lies(read_path(arguments, path)) for path in call.written}
    result = call.run(_with(arguments, written))
    return _Answer(results=_tensors(result), written=written)


def _can_be(arguments: Arguments, path: Path, view: View) -> bool:
    """Whether what holds a tensor takes it in this form: a cache says by itself which storage it can read."""
    try:
        put(arguments, path, view.tensor)
    except LayoutError:
        return False
    return True


def _check_together(name: str, call: Call, arguments: Arguments, views: Mapping[Path, View], usual: _Answer) -> None:
    """All tensors in one form at once; fewer where that is refused, each by itself where it is wrong: none may hide another."""
    try:
        if _check(name, call, arguments, views, usual):
            return
        inputs = {path: view for path, view in views.items() if path not in call.written}
        apart = views.keys() - inputs.keys()
        if not _check(name, call, arguments, inputs, usual):
            apart = set(views)
        for path in apart:
            _check(name, call, arguments, {path: views[path]}, usual)
    except ConformanceError:
        for path, view in views.items():
            _check(f"{show_path(path)} {name}", call, arguments, {path: view}, usual)
        raise


def _check(name: str, call: Call, arguments: Arguments, views: Mapping[Path, View], usual: _Answer) -> bool:
    """Whether the call was served and not refused; ConformanceError where it was served wrongly, or wrote and refused."""
    memory = {path: view.memory.clone() for path, view in views.items()}
    others = {path: copy_as_it_lies(read_path(arguments, path)) for path in call.written if path not in views}
    before = {path: tensor.clone() for path, tensor in others.items()}
    try:
        given = _with(arguments, others | {path: view.tensor for path, view in views.items()})
        results = _tensors(call.run(given))
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
        kept = view.margin if path in call.written else slice(None)
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
