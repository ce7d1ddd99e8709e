"""Every registered backend against the contract, on the devices of this machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hal.common.backends.registry import backends, broken_plugins, platforms
from hal.common.backends.select import select, supports_combination
from hal.common.contract.device import Device
from hal.common.contract.errors import NoBackend
from hal.common.contract.request import Request
from hal.config import read_shape
from hal.testing import FULL, SMALL, conformance_cases
from hal.testing.targets import Target, find_targets

BUILT = [cls for cls in backends().values() if cls.capabilities is not None]
CPU = backends()["cpu"]
NOT_BUILT = [cls for cls in backends().values() if cls.capabilities is None]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" not in metafunc.fixturenames:
        return
    targets = find_targets(metafunc.config.getoption("--backend"))
    params = [
        pytest.param(target, case, id=f"{target.id}-{case.id}", marks=[pytest.mark.hardware] * target.needs_hardware)
        for target in targets
        for case in conformance_cases(target.backend, FULL)
    ]
    metafunc.parametrize(("target", "case"), params)


def test_a_backend_does_what_the_contract_says_on_this_machine(target: Target, case, prove):
    device = target.device.name if target.needs_hardware else ""
    prove(case, backend=target.backend.name, arch=target.device.arch, state="verified", means="the device itself", device=device)
    case.check(target.backend(target.device))


def test_every_plugin_is_registered():
    assert broken_plugins() == {}
    assert "cpu" in {cls.name for cls in BUILT}


def test_the_cpu_backend_is_held_to_the_contract_here():
    assert "cpu" in [target.id for target in find_targets()]


@pytest.mark.parametrize("cls", BUILT, ids=lambda cls: cls.name)
def test_a_written_backend_runs_here(cls):
    if cls not in [target.backend for target in find_targets()]:
        pytest.skip(f"no {cls.platform} device here")


@pytest.mark.parametrize("cls", NOT_BUILT, ids=lambda cls: cls.name)
def test_an_unwritten_backend_says_so_and_is_never_selected(cls, monkeypatch):
    monkeypatch.delenv("HAL_BACKEND", raising=False)
    layer = read_shape(LLAMA).layer(0)
    for arch in platforms()[cls.platform].archs():
        request = Request(layer=layer, device=Device.from_arch(arch.name, torch_device="cpu"), dtype="bfloat16")
        reasons = supports_combination(request)[cls.name]
        assert "not_built" in [reason.code for reason in reasons]
        with pytest.raises(NoBackend, match=cls.name):
            select(request, backend=cls.name)
        assert _select_freely(request) != cls.name


def _select_freely(request: Request) -> str | None:
    try:
        return select(request).backend
    except NoBackend:
        return None


QUANTISED = ("latent_fp8", "fp8_ds_mla", "kv_fp8", "indexer_fp8", "compressed")


@pytest.mark.parametrize(
    "case",
    [case for case in conformance_cases(CPU, SMALL) if any(name in case.id for name in QUANTISED)],
    ids=lambda case: case.id,
)
def test_the_cpu_reads_and_writes_the_other_fp8_variant(case):
    """Caches as gfx942 keeps them: a device of e4m3fnuz."""
    case.check(CPU(replace(Device.from_arch("cpu"), fp8="e4m3fnuz")))
