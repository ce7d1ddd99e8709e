"""Management libraries as they behave on machines that these tests do not run on."""

from __future__ import annotations

import logging
from types import ModuleType, SimpleNamespace

GIB = 2**30


class NVMLError(Exception):
    """Base of the library's errors."""


class FakeNVML(ModuleType):
    """NVML with some devices: (capability, name, divided by MIG). A divided one has parts MIG-<index><part>-... of 5 GiB."""

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

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        index = uuid.removeprefix("MIG-")[:1]
        if not (uuid.startswith("MIG-") and index.isdigit() and int(index) < len(self.devices) and self.devices[int(index)][2]):
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: str) -> int:
        return int(part.removeprefix("MIG-")[0])

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}{handle}-aaaa"

    def nvmlDeviceGetName(self, handle: int | str) -> object:
        return "NVIDIA H100 MIG 1g.5gb" if isinstance(handle, str) else self.devices[handle][1]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if not self.devices[handle][2]:
            raise NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetCudaComputeCapability(self, handle: int | str) -> tuple[int, int]:
        if isinstance(handle, str):
            raise NVMLError("Not Supported")
        return self.devices[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int | str) -> SimpleNamespace:
        return SimpleNamespace(total=5 * GIB if isinstance(handle, str) else (handle + 1) * GIB)


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


class ROCMLError_LibraryNotFound(Exception):  # noqa: N801, N818 - the library's own name
    """One of pyrsmi's errors: they have no base of their own."""


def make_pyrsmi(*devices: str | tuple[str, int], error: Exception | None = None, count: object = None) -> dict[str, ModuleType]:
    """pyrsmi and its rocml, with the names of devices, or their names and memory.

    error is raised by smi_initialize, after printing as the real one does. A getter that fails logs on the root logger and
    answers with -1 or "", as do all of them before smi_initialize; count is answered instead of how many there are.
    """
    known = [device if isinstance(device, tuple) else (device, GIB) for device in devices]
    opened: list[bool] = []

    def initialize() -> None:
        print("noise on stdout")
        if error is not None:
            raise error
        opened.append(True)

    def read(index: int, column: int, nothing: object) -> object:
        if not opened or known[index][column] in (-1, ""):
            logging.error("Traceback (most recent call last): noise on the root logger")
            return nothing
        return known[index][column]

    package, rocml = ModuleType("pyrsmi"), ModuleType("pyrsmi.rocml")
    rocml.smi_initialize, rocml.smi_shutdown = initialize, opened.clear
    rocml.smi_get_device_count = lambda: (len(known) if opened else 0) if count is None else count
    rocml.smi_get_device_name = lambda index: read(index, 0, "")
    rocml.smi_get_device_memory_total = lambda index: read(index, 1, -1)
    package.rocml = rocml
    return {"pyrsmi": package, "pyrsmi.rocml": rocml}


class Untouchable:
    """A device module of torch whose every use but is_initialized() would create a context."""

    def is_initialized(self) -> bool:
        return False

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} would create a context")


def make_torch(running: dict[str, list[SimpleNamespace]] | None = None, **built_for: str) -> ModuleType:
    """A loaded torch that was built for some accelerators; running: the properties of devices that it has opened, by type."""
    module = ModuleType("torch")
    names = {"cuda": None, "hip": None, "xpu": None, **built_for}
    module.version = SimpleNamespace(__version__="2.99", **names)
    module.cuda, module.xpu = Untouchable(), Untouchable()
    for device_type, devices in (running or {}).items():
        opened = SimpleNamespace(
            is_initialized=lambda: True, device_count=devices.__len__, get_device_properties=devices.__getitem__
        )
        setattr(module, device_type, opened)
    return module
