"""Options that pick what runs: --device for an accelerator, --backend for one backend's cases, --share for a day's part."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from hal.common.contract.device import Device
from hal.common.contract.errors import BackendError
from hal.testing.targets import find_device, find_targets

pytest_plugins = ["hal.testing.proof"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hal")
    group.addoption("--device", metavar="PLATFORM", help="run the tests marked `hardware` on this platform's device")
    group.addoption("--backend", metavar="NAME", help="hold only this backend to the contract; it must be able to run")
    group.addoption(
        "--share", metavar="N", type=int, default=1, help="run every N-th case of a parametrised test, others each day"
    )


def pytest_configure(config: pytest.Config) -> None:
    try:
        if config.getoption("--device") is not None:
            find_device(config.getoption("--device"))
        if config.getoption("--backend") is not None:
            find_targets(config.getoption("--backend"))
        if config.getoption("--share") < 1:
            raise ValueError(f"--share is {config.getoption('--share')}; expected a whole number of at least 1")
    except (ValueError, BackendError) as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _keep_share(config, items)
    if config.getoption("--device") is not None:
        return
    skip = pytest.mark.skip(reason="needs an accelerator; name its platform with --device")
    for item in items:
        if item.get_closest_marker("hardware") is not None:
            item.add_marker(skip)


def _keep_share(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the day's share of every parametrised test in the list, and every other test."""
    parts, day = config.getoption("--share"), datetime.now(UTC).toordinal()
    if parts == 1:
        return
    seen: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        is_whole = name == item.nodeid
        (kept if is_whole or seen[name] % parts == day % parts else left).append(item)
        seen[name] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.fixture
def hardware_device(request: pytest.FixtureRequest) -> Device:
    """The accelerator named by --device."""
    return find_device(request.config.getoption("--device"))


@pytest.fixture(scope="module")
def single_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class _NoScope:
    def restore(self) -> None:
        """Nothing to restore: the patch stays for the whole process."""


@pytest.fixture(scope="session")
def patched_language() -> Iterator[None]:
    """The language patched once; a process that interprets kernels never compiles one, so it may stay so."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from triton import language
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    patch(SimpleNamespace(__globals__={"tl": language, "core": language.core}))

    def keep(_function: Any) -> _NoScope:
        return _NoScope()

    with pytest.MonkeyPatch.context() as context:
        context.setattr(interpreter, "_patch_lang", keep)
        yield
