"""Which launches compile for a plan."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from hal.config.runs import without_ids

from .backend import Backend
from .errors import BackendError
from .quiet import describe_error
from .request import Request
from .selection import Selection


def list_keys(
    requests: Sequence[Request | None],
    selections: Sequence[Selection | None],
    backends: Mapping[str, type[Backend]],
    target: str,
) -> tuple[Hashable, ...]:
    """The key of every launch that compiles for a plan, once each; BackendError where a backend promises some and lists none."""
    keys: dict[Hashable, None] = {}
    for name, served in list_compiled(requests, selections, backends):
        try:
            own = dict.fromkeys(key for request in served for key in backends[name].list_launches(request))
        except Exception as error:
            raise BackendError(f"{name} does not say which launches compile: {describe_error(error)}") from error
        if not own:
            raise BackendError(f"{name} declares compiled launches and lists none for {target}; its list is wrong")
        keys |= own
    return tuple(keys)


def list_compiled(
    requests: Sequence[Request | None], selections: Sequence[Selection | None], backends: Mapping[str, type[Backend]]
) -> Iterator[tuple[str, tuple[Request, ...]]]:
    """Each backend whose launches compile, with the distinct requests that it serves."""
    served: dict[str, dict[Request, Request]] = {}
    for request, selection in zip(requests, selections, strict=True):
        if request is None or selection is None:
            continue
        # Layers that differ in their ids alone launch the same.
        alike = replace(request, layer=without_ids(request.layer))
        for name in selection.providers.values():
            served.setdefault(name, {}).setdefault(alike, request)
    for name, distinct in sorted(served.items()):
        capabilities = backends[name].capabilities
        if capabilities is not None and capabilities.compiled_launches:
            yield name, tuple(distinct.values())
