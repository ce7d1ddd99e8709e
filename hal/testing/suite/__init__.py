"""The conformance suite: what every backend is held to, call by call, as far as its capabilities reach."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator

from hal.common.contract.backend import Backend, required_calls
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.errors import BackendError
from hal.common.triton.interpreter import repair_interpreter
from hal.testing.case import FULL, Case, Profile, Sizes, fit_sizes

from . import (
    bad_input,
    caches,
    compress,
    far_rows,
    merge,
    paged,
    pipeline,
    pools,
    ranges,
    rows,
    scores,
    sink,
    sparse,
    strides,
    topk,
    unseen,
    varlen,
)

Generate = Callable[[Capabilities, Sizes], Iterator[Case]]

_GENERATORS: tuple[Generate, ...] = (
    caches.cases,
    paged.cases,
    varlen.cases,
    scores.cases,
    ranges.cases,
    topk.cases,
    pools.cases,
    compress.cases,
    rows.cases,
    sparse.cases,
    merge.cases,
    sink.cases,
    pipeline.cases,
    unseen.cases,
    bad_input.cases,
    strides.cases,
    far_rows.cases,
)


def conformance_cases(
    backend: type[Backend], profile: Profile = FULL, *, calls: Collection[str] | None = None
) -> tuple[Case, ...]:
    """Every case that the backend's declaration calls for, with unique ids; run one by `case.check(backend(device))`.

    calls: only cases of these calls. BackendError where a backend declares nothing, or calls a case cannot be made for.
    """
    declared = backend.capabilities
    if declared is None:
        raise BackendError(f"{backend.name}: its calls are not written yet, so there is nothing to hold it to")
    if os.environ.get("TRITON_INTERPRET") == "1":
        repair_interpreter()
    needed = set(required_calls(declared)) if calls is None else set(required_calls(declared)) & set(calls)
    sizes = fit_sizes(declared, profile)
    cases = tuple(case for generate in _GENERATORS for case in generate(declared, sizes) if case.call in needed)
    unchecked = needed - {case.call for case in cases}
    if unchecked:
        raise BackendError(f"{backend.name}: the suite has no case for {', '.join(sorted(unchecked))}")
    return cases
