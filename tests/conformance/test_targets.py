"""A backend or a device that was asked for and is missing is an error, not a skip."""

from __future__ import annotations

import pytest

from hal.common.backends.registry import backends
from hal.common.contract.errors import BackendError
from hal.testing import ReferenceBackend, targets
from hal.testing.targets import find_device, find_targets


@pytest.fixture
def absent_backend(monkeypatch):
    class Absent(ReferenceBackend):
        name, platform = "nowhere:fast", "nowhere"

    monkeypatch.setattr(targets, "find_backend", lambda _: Absent)
    return Absent.name


def test_a_backend_of_the_machine_is_found():
    (target,) = find_targets("cpu")
    assert (target.id, target.needs_hardware) == ("cpu", False)


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown backend 'cpux'.*cpu"):
        find_targets("cpux")


def test_a_backend_without_a_device_here_is_refused(absent_backend):
    with pytest.raises(BackendError, match="nowhere:fast was asked for and no device here can run it"):
        find_targets(absent_backend)


@pytest.mark.parametrize("name", [name for name, cls in backends().items() if cls.capabilities is None])
def test_an_unwritten_backend_is_refused(name):
    with pytest.raises(BackendError, match="not written yet"):
        find_targets(name)


def test_an_unknown_platform_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown platform 'quantum'; registered: cpu"):
        find_device("quantum")


def test_a_platform_without_a_device_here_is_refused(monkeypatch):
    probe = targets.probe_platforms()[0]
    empty = type(probe)(platform="cpu", devices=(), findings=("no CPU was found",))
    monkeypatch.setattr(targets, "probe_platforms", lambda: (empty,))
    with pytest.raises(BackendError, match=r"a cpu device was asked for.*no CPU was found"):
        find_device("cpu")


def test_the_device_of_a_platform_is_found():
    assert find_device("cpu").torch_device == "cpu"
