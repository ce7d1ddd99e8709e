"""Platforms and backends: found by entry point, checked at registration, kept by name."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hal.common.contract.backend import Backend, check_backend
from hal.common.contract.errors import BackendError, InputError
from hal.common.contract.platform import Platform, check_archs, check_platform, load_object
from hal.common.contract.quiet import describe_error, silenced
from hal.common.contract.reason import Reason
from hal.common.contract.software import Library

from .plugins import Plugin, find_unknown_plugins, list_plugins

_logger = logging.getLogger(__name__)
# Answers kept at once; a fleet's plans ask far fewer questions, and past it the oldest answers are not worth an order.
_MAX_ANSWERS = 4096

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Answers:
    """What pure functions of the registered backends have answered so far; it holds for these backends alone."""

    backends: dict[str, type[Backend]]
    known: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Registry:
    """The one piece of module-level state: what is registered, what could not be, and what was answered from it.

    loaders: the threads that are loading plugins, whose plugins ask the registry while they are imported.
    """

    platforms: dict[str, Platform] = field(default_factory=dict)
    backends: dict[str, type[Backend]] = field(default_factory=dict)
    broken: dict[str, Exception] = field(default_factory=dict)
    answers: _Answers | None = None
    is_loaded: bool = False
    loaders: set[int] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)


_registry = _Registry()


def platforms() -> dict[str, Platform]:
    """Every registered platform by name."""
    _load()
    return dict(_registry.platforms)


def backends() -> dict[str, type[Backend]]:
    """Every registered backend class by name."""
    _load()
    return dict(_registry.backends)


def recall(question: Hashable, work_out: Callable[[], Answer]) -> Answer:
    """The answer to a question that depends on nothing else but the registered backends, worked out the first time.

    Whoever asks must not change the answer; what raises is asked again.
    """
    _load()
    answers = _registry.answers
    if answers is None or answers.backends is not _registry.backends or len(answers.known) >= _MAX_ANSWERS:
        answers = _registry.answers = _Answers(_registry.backends)
    found: Answer | None = answers.known.get(question)
    if found is None:
        found = answers.known[question] = work_out()
    return found


def known_libraries() -> dict[str, Library]:
    """Every vendor library that a registered backend can use, by the name it has in Software."""
    found = [library for cls in backends().values() for library in (*cls.libraries, *cls.alternatives)]
    return {library.name: library for library in found}


def broken_plugins() -> dict[str, str]:
    """Entry points that could not be registered: "name (distribution)" -> "Type: message"."""
    _load()
    return {name: describe_error(error) for name, error in _registry.broken.items()}


def broken_candidates() -> dict[str, tuple[Reason, ...]]:
    """The same as candidates that were rejected: "name (distribution)" -> the reason."""
    return {name: (Reason("library_broken", failure, name),) for name, failure in broken_plugins().items()}


def find_backend(name: str) -> type[Backend]:
    """A backend class by name, or by a former one with a FutureWarning.

    ValueError lists the valid names, and chains what kept a plugin of that name from loading.
    """
    known = backends()
    if not isinstance(name, str):
        raise InputError(f"a backend is {name!r}; expected one of the names {', '.join(sorted(known))}")
    if name in known:
        return known[name]
    if (renamed := next((cls for cls in known.values() if name in cls.former_names), None)) is not None:
        warnings.warn(f"the backend {name} is called {renamed.name}; use that name", FutureWarning, stacklevel=1)
        return renamed
    failures = "".join(f"; {plugin} does not load: {failure}" for plugin, failure in broken_plugins().items())
    # A plugin is called after its platform, or after its one backend.
    names = (f"{name} (", f"{name.partition(':')[0]} (")
    cause = next((error for plugin, error in _registry.broken.items() if plugin.startswith(names)), None)
    raise InputError(f"unknown backend {name!r}; registered: {', '.join(sorted(known))}{failures}") from cause


def register_backend(cls: type[Backend]) -> type[Backend]:
    """The class, registered; usable as a decorator.

    BackendError names the calls that the class's capabilities promise and it lacks, or the clash of names.
    """
    _load()
    _add_backend(cls)
    return cls


def register_platform(platform: Platform) -> Platform:
    """The platform, registered with all its backends; BackendError where a name is taken or a backend is refused."""
    _load()
    _add_platform(platform)
    return platform


def _add_platform(platform: Platform) -> None:
    check_platform(platform)
    _check_platform_name(platform)
    check_archs(platform)
    classes = [load_object(path) for path in platform.backends]
    for cls in classes:
        _check_name(cls)
        if cls.platform != platform.name:
            raise BackendError(f"backend {cls.name!r} of platform {platform.name!r} says that it runs on {cls.platform!r}")
    names = [cls.name for cls in classes]
    if len(set(names)) < len(names):
        raise BackendError(f"platform {platform.name!r} has two backends of one name: {', '.join(sorted(names))}")
    with _registry.lock:
        _check_platform_name(platform)
        _registry.platforms[platform.name] = platform
        _registry.answers = None
        for cls in classes:
            _registry.backends[cls.name] = cls


def _check_platform_name(platform: Platform) -> None:
    taken = _registry.platforms.get(platform.name)
    if taken is not None and taken != platform:
        raise BackendError(f"platform {platform.name!r} is already registered by {taken.package}")


def _add_backend(cls: type[Backend]) -> None:
    with _registry.lock:
        _check_name(cls)
        _registry.answers = None
        _registry.backends[cls.name] = cls


def _check_name(cls: type[Backend]) -> None:
    check_backend(cls)
    taken = _registry.backends.get(cls.name)
    if taken is not None and taken is not cls:
        raise BackendError(f"backend {cls.name!r} is already registered by {taken.__module__}.{taken.__qualname__}")


def _load() -> None:
    """Every allowed plugin, registered once. Threads that ask at the same time load them together."""
    thread = threading.get_ident()
    if _registry.is_loaded or thread in _registry.loaders:
        return
    _registry.loaders.add(thread)
    try:
        plugins = list_plugins()
        allowed = [plugin for plugin in plugins if plugin.is_allowed]
        # hal's own first, so that no other can take their names.
        for group in ([plugin for plugin in allowed if plugin.is_own], [plugin for plugin in allowed if not plugin.is_own]):
            # Imported without the lock: who imports a plugin elsewhere holds its import lock, and may be waiting for this one.
            loaded = [(plugin, *_import_plugin(plugin)) for plugin in group]
            with _registry.lock:
                if _registry.is_loaded:
                    return
                for plugin, declared, failure in loaded:
                    _register_plugin(plugin, declared, failure)
        for name in find_unknown_plugins(plugins):
            _logger.warning("HAL_PLUGINS names %s, which nothing installed is; there are: %s", name, ", ".join(map(str, plugins)))
        _registry.is_loaded = True
    finally:
        _registry.loaders.discard(thread)


def _import_plugin(plugin: Plugin) -> tuple[Any, Exception | None]:
    """What an entry point declares, or what it raised: one broken plugin must not take the others down."""
    if plugin.entry is None:
        return None, plugin.failure
    try:
        with silenced():
            return plugin.entry.load(), None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - kept, as a candidate that was rejected
        return None, error if isinstance(error, Exception) else BackendError(describe_error(error))


def _register_plugin(plugin: Plugin, declared: Any, failure: Exception | None) -> None:
    try:
        if failure is not None:
            raise failure
        if isinstance(declared, Platform):
            _add_platform(declared)
        else:
            _add_backend(declared)
    except Exception as error:  # noqa: BLE001 - kept, as a candidate that was rejected
        _registry.broken[str(plugin)] = error
