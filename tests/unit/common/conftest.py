"""A registry of the test's own, and an environment without hal's variables."""

from __future__ import annotations

import os

import pytest

from hal.common.backends import registry as registry_module
from hal.common.backends.registry import backends, platforms
from hal.common.contract.software import Library

from .helpers.fakes import make_backend, register


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No HAL_* variable is set."""
    for name in [name for name in os.environ if name.startswith("HAL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> registry_module._Registry:
    """A copy of the registry with every platform and backend; the real one is back afterwards."""
    copy = registry_module._Registry(platforms=platforms(), backends=backends(), is_loaded=True)
    monkeypatch.setattr(registry_module, "_registry", copy)
    return copy


@pytest.fixture
def no_backends(registry: registry_module._Registry) -> registry_module._Registry:
    """A registry with every platform and no backend."""
    registry.backends.clear()
    return registry


@pytest.fixture
def fleet(no_backends: object) -> None:
    """A portable backend for everything and two vendors' on top of it."""
    portable = make_backend("cuda:triton", rank={"*": 90}, sink=True, window=True, default_block_size=32)
    fast = make_backend(
        "cuda:fast",
        base=portable,
        rank={"sm_90": 1, "*": 5},
        provides=frozenset({"paged_attention"}),
        libraries=(Library(name="fast", distributions=("fast",)),),
        head_dims=frozenset({64}),
        default_block_size=64,
    )
    other = make_backend("cuda:other", base=portable, rank={"sm_90": 2, "sm_100": 0}, provides=frozenset({"paged_attention"}))
    register(portable, fast, other)
