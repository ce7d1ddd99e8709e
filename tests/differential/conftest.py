"""The backends that an item's oracle is held against: what runs here, or in Triton's interpreter the portable kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from .helpers.targets import IS_INTERPRETED, find_cpu_targets


@pytest.fixture(autouse=True)
def small_calls(single_thread: None, patched_language: None) -> None:
    """One thread, and an interpreter that does not patch its language at every launch."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        targets = find_cpu_targets(metafunc.config.getoption("--backend"))
        remote = [target.needs_hardware and target.device.torch_device != "cpu" for target in targets]
        marked = [pytest.param(t, id=t.id, marks=[pytest.mark.hardware] * far) for t, far in zip(targets, remote, strict=True)]
        metafunc.parametrize("target", marked)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Interpreting kernels changes nothing for what calls none of them."""
    if IS_INTERPRETED:
        here = Path(__file__).parent
        kept = [item for item in items if here not in item.path.parents or "target" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
