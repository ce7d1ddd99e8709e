"""A backend's calls by name."""

from __future__ import annotations

import pytest

import hal

from .helpers.fakes import make_backend


def test_the_cpus_calls_are_bound_to_this_machine() -> None:
    calls = hal.kernels("cpu")
    assert isinstance(calls, hal.Kernels)
    assert (calls.name, calls.device.torch_device) == ("cpu", "cpu")


def test_a_device_that_is_given_is_used() -> None:
    device = hal.Device.from_arch("cpu")
    assert hal.kernels("cpu", device).device is device


def test_kernels_of_an_unknown_name_list_the_known() -> None:
    with pytest.raises(ValueError, match=r"'gpu'.*cpu"):
        hal.kernels("gpu")


@pytest.mark.usefixtures("registry")
def test_a_backend_without_calls_says_so() -> None:
    hal.register_backend(type("Unwritten", (hal.Backend,), {"name": "cuda:unwritten", "platform": "cuda"}))
    with pytest.raises(hal.BackendError, match=r"cuda:unwritten.*not written"):
        hal.kernels("cuda:unwritten")


@pytest.mark.usefixtures("registry")
class TestElsewhere:
    def test_a_device_that_is_not_here_says_how_to_go_on(self) -> None:
        hal.register_backend(make_backend("cuda:new"))
        with pytest.raises(hal.BackendError, match=r"cuda:new.*torch_device='cpu'"):
            hal.kernels("cuda:new", hal.Device.from_arch("sm_90"))

    def test_tensors_may_live_on_the_cpu(self) -> None:
        new = hal.register_backend(make_backend("cuda:new"))
        assert isinstance(hal.kernels("cuda:new", hal.Device.from_arch("sm_90", torch_device="cpu")), new)

    def test_a_device_of_another_platform_is_refused(self) -> None:
        with pytest.raises(hal.BackendError, match=r"cpu runs on cpu devices, not on rocm:gfx942"):
            hal.kernels("cpu", hal.Device.from_arch("gfx942", torch_device="cpu"))


@pytest.mark.parametrize("device", ["cpu", 0, object()], ids=["a_target", "a_number", "an_object"])
def test_what_is_no_device_is_refused(device: object) -> None:
    with pytest.raises(hal.InputError, match=r"expected a hal\.Device"):
        hal.kernels("cpu", device)
