"""Opening an adapter: its library is loaded then, and what goes wrong is a typed error with its cause."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import hal
from hal.common.backends.kernels import kernels
from hal.common.backends.registry import find_backend
from hal.common.contract.device import Device
from hal.common.contract.errors import BackendError
from hal.config import read_shape
from hal.matrix.signatures import read_signatures
from hal.testing.stand_ins import installed, make_fakes

SIGNATURES = read_signatures()


def device(arch: str) -> Device:
    return Device.from_arch(arch, torch_device="cpu")


def fakes(arch: str, **libraries: str) -> dict[str, ModuleType]:
    return make_fakes(SIGNATURES, arch=arch, libraries=libraries)


@pytest.mark.parametrize(
    ("backend", "arch", "library"),
    [
        ("cuda:flash_attention", "sm_90", "flash_attn_3"),
        ("cuda:flash_mla", "sm_100", "flash_mla or vllm_flash_mla"),
        ("rocm:aiter", "gfx942", "aiter"),
        ("xpu:vllm_kernels", "pvc", "vllm_xpu_kernels"),
        ("xpu:ipex", "pvc", "ipex"),
    ],
)
def test_absent_library_is_named(backend: str, arch: str, library: str) -> None:
    with pytest.raises(BackendError, match=f"{backend}.*needs.*{library}.*not installed"):
        kernels(backend, device(arch))


def test_library_that_imports_without_its_kernels_is_refused_with_its_reason() -> None:
    modules = fakes("pvc", vllm_xpu_kernels="0.1.16.2")
    modules["vllm_xpu_kernels.flash_attn_interface"].FA2_AVAILABLE = False
    modules["vllm_xpu_kernels.flash_attn_interface"].FA2_UNAVAILABLE_REASON = "libze_loader.so.1: cannot open"
    with installed(modules), pytest.raises(BackendError, match="libze_loader"):
        kernels("xpu:vllm_kernels", device("pvc"))


def later_flash_mla() -> dict[str, ModuleType]:
    """The version that is known, with the function of a release that is not."""

    def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, indexer_topk=0):
        raise RuntimeError("d_qk must be 512")

    modules = fakes("sm_90", flash_mla="1.0.0")
    modules["flash_mla.flash_mla_interface"].flash_mla_sparse_fwd = flash_mla_sparse_fwd
    return modules


def test_release_with_another_interface_is_told_by_its_function_and_not_by_its_version() -> None:
    with installed(later_flash_mla()), pytest.raises(BackendError, match="takes indexer_topk"):
        kernels("cuda:flash_mla", device("sm_90"))


def test_such_a_release_is_passed_over_where_another_library_is_there() -> None:
    with installed(later_flash_mla() | fakes("sm_90", vllm_flash_mla="0.33")):
        chosen = kernels("cuda:flash_mla", device("sm_90")).choose_kernel("sparse_mla", "sparse_mla")
    assert chosen.library == "vllm_flash_mla"


@pytest.mark.parametrize("error", [OSError("libcuda.so.1"), KeyError("lib"), RuntimeError("no driver")])
def test_library_that_does_not_load_is_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> object:
            if name == "flash_attn_interface":
                raise error
            return None

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(BackendError, match=f"does not load: {type(error).__name__}") as caught:
        kernels("cuda:flash_attention", device("sm_90"))
    assert caught.value.__cause__ is error


def test_first_library_that_is_there_is_taken_and_the_next_is_not_touched() -> None:
    with installed(fakes("sm_90", flash_attn_3="3.0.0")):
        backend = kernels("cuda:flash_attention", device("sm_90"))
        assert backend.choose_kernel("sparse_mla", "sparse_mla").library == "flash_attn_3"
    assert "vllm" not in sys.modules
    with installed(fakes("sm_90", vllm_flash_attn="0.33")):
        backend = kernels("cuda:flash_attention", device("sm_90"))
        assert backend.choose_kernel("sparse_mla", "sparse_mla").library == "vllm_flash_attn"


def test_second_generation_serves_what_it_can_and_names_what_it_takes_for_the_rest() -> None:
    with installed(fakes("sm_90", flash_attn="2.8.3")):
        backend = kernels("cuda:flash_attention", device("sm_90"))
        assert backend.choose_kernel("paged_attention", "attention").library == "flash_attn"
        with pytest.raises(BackendError, match=r"no sparse_mla.*would take flash_attn_3 or vllm_flash_attn"):
            backend.choose_kernel("sparse_mla", "sparse_mla")


def test_namespace_of_another_generation_is_not_the_library() -> None:
    """The fourth generation's distribution makes a package flash_attn that holds nothing of the second."""
    with installed(fakes("sm_80", flash_attn_4="4.0.0b36")), pytest.raises(BackendError, match="not installed"):
        kernels("cuda:flash_attention", device("sm_80"))


def test_unknown_release_or_library_of_a_stand_in_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recorded releases: 3.0.0"):
        fakes("sm_90", flash_attn_3="1.0")
    with pytest.raises(ValueError, match="no stand-in for 'magic'"):
        fakes("sm_90", magic="1")


def test_plan_is_made_without_the_library_and_opened_only_with_it() -> None:
    shape = read_shape(
        {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 8}
    )
    plan = hal.plan(shape, device("sm_90"), dtype="bfloat16", limits=hal.Limits(64, 2, 32))
    assert plan.selections[0].backend == "cuda:flash_attention"
    with pytest.raises(BackendError, match="needs flash_attn, flash_attn_3 or vllm_flash_attn"):
        plan.open()


@pytest.mark.parametrize(("former", "name"), [("xpu:kernels", "xpu:vllm_kernels")])
def test_a_backend_that_was_renamed_is_still_found(former: str, name: str) -> None:
    with pytest.warns(FutureWarning, match=f"the backend {former} is called {name}"):
        assert find_backend(former).name == name
