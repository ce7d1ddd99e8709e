"""Management libraries as they behave on machines that these tests do not run on."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

GIB = 2**30


class NVMLError(Exception):
    """Base of the library's errors."""


class FakeNVML(ModuleType):
    """NVML with some devices: (capability, name, divided by MIG)."""

    def __init__(self, *devices: tuple[tuple[int, int], object, bool]) -> None:
        super().__init__("pynvml")
        self.devices = devices
        self.is_open = False

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        if not self.is_open:
            raise NVMLError("Uninitialized")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}{handle}-aaaa"

    def nvmlDeviceGetName(self, handle: int) -> object:
        return self.devices[handle][1]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if not self.devices[handle][2]:
            raise NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.devices[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=(handle + 1) * GIB)


def make_amdsmi(*archs: str) -> ModuleType:
    """amdsmi with a device of each arch."""
    module = ModuleType("amdsmi")
    module.amdsmi_init = lambda: None
    module.amdsmi_shut_down = lambda: None
    module.amdsmi_get_processor_handles = lambda: list(range(len(archs)))
    module.amdsmi_get_gpu_asic_info = lambda handle: {
        "target_graphics_version": archs[handle],
        "market_name": f"Card {handle}",
        "asic_serial": f"0x{handle + 10:016X}",
    }
    module.amdsmi_get_gpu_vram_info = lambda _handle: {"vram_size": 1024}
    return module


def make_pyrsmi(*names: str, error: Exception | None = None) -> dict[str, ModuleType]:
    """pyrsmi and its rocml; an error is raised by smi_initialize, after printing as the real one does."""

    def initialize() -> None:
        print("noise on stdout")
        if error is not None:
            raise error

    package, rocml = ModuleType("pyrsmi"), ModuleType("pyrsmi.rocml")
    rocml.smi_initialize, rocml.smi_shutdown = initialize, lambda: None
    rocml.smi_get_device_count = lambda: len(names)
    rocml.smi_get_device_name = names.__getitem__
    package.rocml = rocml
    return {"pyrsmi": package, "pyrsmi.rocml": rocml}


def make_torch(**built_for: str) -> ModuleType:
    """A loaded torch that was built for some accelerators."""
    module = ModuleType("torch")
    names = {"cuda": None, "hip": None, "xpu": None, **built_for}
    module.version = SimpleNamespace(__version__="2.99", **names)
    return module
