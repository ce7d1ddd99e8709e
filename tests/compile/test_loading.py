"""Warm-up by Triton's own way: a launch finds its kernel compiled and loaded, as a driver that only names a target shows."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import hal
from hal.common.triton import specialisations
from hal.common.triton.launch import Launch, load_kernel
from hal.common.triton.loading import load_for_current_device
from hal.config import LayerShape

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels compile nothing: run this without TRITON_INTERPRET"
)
triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")
jit = pytest.importorskip("triton.runtime.jit")

TARGETS = {"sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
LAYER = LayerShape(layer_id=0, kind="attention", num_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64, softmax_scale=1.0)
KERNELS = ("cache:write_rows", "cache:read_rows", "merge:merge_pair")


class Driver:
    """Names a target, loads nothing, and remembers what it was to load."""

    def __init__(self, target: tuple[Any, ...]) -> None:
        self._target = target
        self.loaded: list[str] = []
        self.utils = SimpleNamespace(
            load_binary=self._load, unload_module=lambda _: None, get_device_properties=lambda _: {"max_shared_mem": 1 << 20}
        )

    def _load(self, name: str, *_: Any) -> tuple[int, int, int, int, int]:
        self.loaded.append(name)
        return 1, 1, 0, 0, 1024

    def launcher_cls(self, *_: Any) -> Any:
        return lambda *_: None

    def get_current_target(self) -> Any:
        return triton.backends.compiler.GPUTarget(*self._target)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


@pytest.fixture(params=TARGETS)
def arch(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def driver(arch: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver(TARGETS[arch])
    monkeypatch.setattr(triton.runtime.driver, "_active", made)
    yield made
    # Kernels unload themselves, which asks for the driver once more.
    for path in KERNELS:
        load_kernel(path).device_caches.clear()
    gc.collect()


@pytest.fixture
def compiled(driver: Driver, arch: str) -> dict[str, list[Any]]:
    """What a request compiles of some kernels, by their names, all of it loaded."""
    request = hal.Request(LAYER, hal.Device.from_arch(arch), "bfloat16")
    found: dict[str, list[Any]] = {}
    for each in specialisations(request):
        if each.name in KERNELS:
            found.setdefault(each.name, []).append(each)
    for each in (each for several in found.values() for each in several):
        load_for_current_device(each)
    return found


def random_launches(seed: int) -> list[Launch]:
    """Writes, reads and merges of a plan's sizes, as its calls make them of real tensors."""
    made: list[Launch] = []
    generator = torch.Generator().manual_seed(seed)
    device = hal.Device.from_arch("sm_90", torch_device="cpu")
    backend = hal.kernels("cuda:triton", device)
    backend.launcher.run = made.append
    tokens, pages = (int(torch.randint(1, 70, (), generator=generator)) for _ in range(2))
    layout = hal.layouts.attention_layout(2, 64, 64, "bfloat16")
    storage = torch.zeros(pages, 64, layout.width, dtype=torch.bfloat16)
    cache = hal.backend.KVCache(storage, layout, 64, 64)
    k, v = (torch.zeros(tokens, 2, 64, dtype=torch.bfloat16) for _ in range(2))
    backend.write_cache(cache, torch.zeros(tokens, dtype=torch.int64), k, v)
    backend.gather_cache(cache, torch.zeros(tokens, dtype=torch.int32))
    out, lse = torch.zeros(tokens, 4, 64, dtype=torch.bfloat16), torch.zeros(tokens, 4)
    backend.merge_states(out, lse, out, lse)
    return made


def look_up(launch: Launch) -> bool:
    """Whether what a launch looks up in Triton's cache is there."""
    kernel = load_kernel(launch.kernel)
    known, keys, _, _, binder = kernel.device_caches[0]
    given = {**launch.tensors, **launch.tables, **launch.strides, **launch.numbers, **launch.constants}
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "debug": False}
    options |= {"instrumentation_mode": "", "fpsan_homomorphic_casts": triton.knobs.compilation.fpsan_homomorphic_casts}
    _, specialisation, rest = binder(**given, **options)
    return jit.compute_cache_key(keys, specialisation, rest) in known


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_every_launch_finds_its_kernel_compiled_and_loaded(driver: Driver, compiled: dict[str, list[Any]]) -> None:
    launches = [launch for seed in range(100) for launch in random_launches(seed)]
    assert {launch.kernel for launch in launches} == set(KERNELS) == set(compiled)
    assert [launch.kernel for launch in launches if not look_up(launch)] == []
    assert len(driver.loaded) >= sum(map(len, compiled.values()))
    strange = replace(launches[0], constants={**launches[0].constants, "PAGE": 32})
    assert not look_up(strange)
