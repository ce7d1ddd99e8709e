"""Who serves a request, and why the others do not."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hal.common.contract.backend import CALLS_BY_FAMILY, PHASED_CALLS, Backend
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.environment import read_variable, warn_of_mistakes
from hal.common.contract.errors import InputError, NoBackend
from hal.common.contract.reason import Reason
from hal.common.contract.request import Request
from hal.common.contract.selection import Selection
from hal.common.contract.wording import say_count
from hal.config.sizes import QUANTISED_INDEX

from .judging import ask_hook, explain_refusal, find_failure, fit_page_size
from .registry import backends, broken_candidates, find_backend, recall

_logger = logging.getLogger(__name__)
_UNRANKED = 100


def supports_combination(request: Request) -> dict[str, tuple[Reason, ...]]:
    """Every registered backend's reasons against a request; an empty tuple means that it serves it.

    A plugin that did not load is a candidate too, as "name (distribution)" with its exception.
    """
    return dict(_judge(request))


def select(request: Request, backend: str | None = None) -> Selection:
    """The backend and the provider of each call; an explicit choice (argument, then HAL_BACKEND) is binding.

    NoBackend carries every backend's reasons; ValueError for a backend name that is not registered.
    """
    warn_of_mistakes()
    return choose(request, backend)


def choose(request: Request, backend: str | None = None) -> Selection:
    """select without a look at how hal's variables are spelled, for who asks for many layers and has looked once."""
    source = "argument"
    if backend is None:
        backend = read_variable("HAL_BACKEND")
        source = "HAL_BACKEND" if backend is not None else "auto"
    if backend is not None:
        backend = _find_choice(backend, source).name
    selection = recall(("select", request, backend, source), lambda: _decide(request, backend, source))
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug("%s: %s (%s)", request.describe(), selection.backend, source)
    return selection


def _judge(request: Request) -> dict[str, tuple[Reason, ...]]:
    """supports_combination's answer, kept for the next equal request."""

    def ask() -> dict[str, tuple[Reason, ...]]:
        return {name: explain_refusal(cls, request) for name, cls in backends().items()} | broken_candidates()

    return recall(("supports", request), ask)


def _decide(request: Request, backend: str | None, source: str) -> Selection:
    verdicts = supports_combination(request)
    if backend is None:
        ranked = [cls for cls in _rank(request) if not verdicts[cls.name]]
        if not ranked:
            raise NoBackend(_describe_refusal(request, verdicts), verdicts)
        chosen = ranked[0]
    else:
        chosen = backends()[backend]
        if verdicts[backend]:
            raise NoBackend(_describe_choice(request, backend, source, verdicts), verdicts) from find_failure(chosen, request)
    return _make_selection(request, chosen, verdicts, source)


def _find_choice(backend: str, source: str) -> type[Backend]:
    try:
        return find_backend(backend)
    except InputError as error:
        if source == "argument":
            raise
        raise InputError(f"{source} is set: {error}") from error


def _rank(request: Request) -> list[type[Backend]]:
    """The platform's own backends, the best for this arch first; names break ties so that the order never varies."""

    def key(cls: type[Backend]) -> tuple[int, str]:
        declared: Mapping[str, int] = cls.capabilities.rank if cls.capabilities is not None else {}
        return declared.get(request.device.arch, declared.get("*", _UNRANKED)), cls.name

    return sorted((cls for cls in backends().values() if cls.platform == request.device.platform), key=key)


def _make_selection(
    request: Request, chosen: type[Backend], verdicts: Mapping[str, tuple[Reason, ...]], source: str
) -> Selection:
    capabilities = _declared(chosen)
    kv_layout = capabilities.kv_layouts[request.family][0] if request.kv_layout == "auto" else request.kv_layout
    block_size = request.block_size or fit_page_size(chosen, request)
    able = [chosen, *(cls for cls in _rank(request) if cls is not chosen and not verdicts[cls.name])]
    owns_index = request.layer.indexer is not None and request.layer.indexer.owns
    return Selection(
        backend=chosen.name,
        providers={call: _provider(call, able, request, verdicts) for call in _calls(request)}
        | _optional_providers(able, request, verdicts),
        kv_layout=kv_layout,
        index_layout=_index_layout(capabilities, kv_layout) if owns_index else None,
        block_size=block_size,
        rejected={name: reasons for name, reasons in verdicts.items() if reasons},
        source=source,
    )


def _index_layout(capabilities: Capabilities, kv_layout: str) -> str:
    """Quantised index keys beside quantised latents where the backend has them, plain ones beside others; else its first."""
    wanted = "indexer_fp8" if kv_layout in QUANTISED_INDEX else "indexer"
    return wanted if wanted in capabilities.index_layouts else capabilities.index_layouts[0]


def _declared(cls: type[Backend]) -> Capabilities:
    if cls.capabilities is None:
        raise TypeError(f"{cls.name} declares no capabilities, so it cannot have been chosen")
    return cls.capabilities


def _calls(request: Request) -> tuple[str, ...]:
    calls: list[str] = []
    for call in CALLS_BY_FAMILY[request.family]:
        calls += [f"{call}.decode", f"{call}.prefill"] if call in PHASED_CALLS else [call]
    if request.layer.sink:
        calls.append("apply_sink")
    if _pools_keys(request):
        calls.append("expand_pools")
    return tuple(calls)


def _pools_keys(request: Request) -> bool:
    return request.layer.indexer is not None and request.layer.indexer.pool > 1


def _optional_providers(
    able: list[type[Backend]], request: Request, verdicts: Mapping[str, tuple[Reason, ...]]
) -> dict[str, str]:
    """Calls that a layer can do without: an engine may bring pooled index keys instead of what they are pooled from."""
    built = [cls for cls in able if cls.compress_states is not Backend.compress_states]
    if not _pools_keys(request) or not built:
        return {}
    return {"compress_states": _provider("compress_states", built, request, verdicts)}


def _provider(key: str, able: list[type[Backend]], request: Request, verdicts: Mapping[str, tuple[Reason, ...]]) -> str:
    """The first able backend whose own call it is and that has nothing against it; NoBackend where every one has."""
    call, _, phase = key.partition(".")
    against: dict[str, tuple[Reason, ...]] = {}
    for cls in able:
        if cls.provides is None or call in cls.provides:
            against[cls.name] = ask_hook(cls, cls.explain_call_refusal, call, phase, request)
            if not against[cls.name]:
                return cls.name
    reasons = "; ".join(f"{name}: {', '.join(map(str, found))}" for name, found in against.items())
    raise NoBackend(f"no backend has {key} for {request.describe()}: {reasons}", {**verdicts, **against})


def _describe_refusal(request: Request, verdicts: Mapping[str, tuple[Reason, ...]]) -> str:
    return f"no backend serves {request.describe()}:\n" + describe_reasons(request, verdicts)


def _describe_choice(request: Request, backend: str, source: str, verdicts: Mapping[str, tuple[Reason, ...]]) -> str:
    able = [name for name, reasons in verdicts.items() if not reasons]
    reasons = "; ".join(str(reason) for reason in verdicts[backend])
    instead = f"these do: {', '.join(able)}" if able else "no other backend does either"
    return f"{backend} (chosen by {source}) cannot serve {request.describe()}: {reasons}. Of the registered backends {instead}"


def describe_reasons(request: Request, verdicts: Mapping[str, tuple[Reason, ...]]) -> str:
    """The reasons as lines for people: environment-wide causes once, then each backend's own."""
    other = {cls.name for cls in backends().values() if cls.platform != request.device.platform}
    own = verdicts.keys() - other
    shared: dict[Reason, list[str]] = {}
    for name in sorted(own):
        for reason in verdicts[name]:
            if reason.is_environmental:
                shared.setdefault(reason.without(name), []).append(name)
    lines = [f"  {', '.join(names)}: {reason.render(names)}" for reason, names in shared.items()]
    for name in sorted(own):
        lines += [f"  {name}: {reason}" for reason in verdicts[name] if not reason.is_environmental]
    if other:
        do = "does" if len(other) == 1 else "do"
        lines.append(f"  {say_count(len(other), 'backend')} of other platforms {do} not run on {request.device.target}")
    return "\n".join(lines) if lines else "  no backend is registered"
