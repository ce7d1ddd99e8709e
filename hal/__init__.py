"""One attention layer for a mixed fleet: plan anywhere, run on CUDA, ROCm, XPU and CPU."""

from __future__ import annotations

from importlib import import_module

# Type checkers take a variable of this name for true; importing it would take longer than all else that is done here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from . import backend as backend
    from . import convert as convert
    from . import layouts as layouts
    from . import ops as ops
    from . import pages as pages
    from . import parallel as parallel
    from . import testing as testing
    from .common.attention import Attention as Attention
    from .common.backend import Backend as Backend
    from .common.batch import Batch as Batch
    from .common.capabilities import Capabilities as Capabilities
    from .common.compressor import Compressor as Compressor
    from .common.detection import detect as detect
    from .common.device import Device as Device
    from .common.device_batch import DeviceBatch as DeviceBatch
    from .common.errors import BackendError as BackendError
    from .common.errors import BatchError as BatchError
    from .common.errors import CapacityError as CapacityError
    from .common.errors import CheckpointError as CheckpointError
    from .common.errors import InputError as InputError
    from .common.errors import LayoutError as LayoutError
    from .common.errors import MissingLibraryError as MissingLibraryError
    from .common.errors import NoBackend as NoBackend
    from .common.errors import NotBuiltError as NotBuiltError
    from .common.kernels import IndexInputs as IndexInputs
    from .common.kernels import KVCache as KVCache
    from .common.kernels import PagedBatch as PagedBatch
    from .common.kernels import Segment as Segment
    from .common.limits import Limits as Limits
    from .common.metadata import MetadataBuilder as MetadataBuilder
    from .common.opened import kernels as kernels
    from .common.parallel import Parallel as Parallel
    from .common.plan import Plan as Plan
    from .common.planning import installed as installed
    from .common.planning import plan as plan
    from .common.platform import Platform as Platform
    from .common.reason import Reason as Reason
    from .common.registry import register_backend as register_backend
    from .common.registry import register_platform as register_platform
    from .common.request import Request as Request
    from .common.select import select as select
    from .common.select import supports_combination as supports_combination
    from .common.selection import Selection as Selection
    from .common.software import Software as Software
    from .common.step import StepMetadata as StepMetadata
    from .config import ConfigError as ConfigError
    from .config import HalError as HalError
    from .config import read_shape as read_shape

    Kernels = Backend

__version__ = "0.1.0"

# Each public name and where it lives; nothing is imported before it is used, so that planning never loads a tensor library.
_HOMES = {
    "Attention": "common.attention",
    "Backend": "common.backend",
    "Kernels": "common.backend",
    "Batch": "common.batch",
    "Capabilities": "common.capabilities",
    "Compressor": "common.compressor",
    "Device": "common.device",
    "detect": "common.detection",
    "DeviceBatch": "common.device_batch",
    "BackendError": "common.errors",
    "BatchError": "common.errors",
    "CapacityError": "common.errors",
    "CheckpointError": "common.errors",
    "InputError": "common.errors",
    "LayoutError": "common.errors",
    "MissingLibraryError": "common.errors",
    "NoBackend": "common.errors",
    "NotBuiltError": "common.errors",
    "IndexInputs": "common.kernels",
    "KVCache": "common.kernels",
    "PagedBatch": "common.kernels",
    "Segment": "common.kernels",
    "Limits": "common.limits",
    "kernels": "common.opened",
    "Parallel": "common.parallel",
    "MetadataBuilder": "common.metadata",
    "Plan": "common.plan",
    "installed": "common.planning",
    "plan": "common.planning",
    "Platform": "common.platform",
    "Reason": "common.reason",
    "register_backend": "common.registry",
    "register_platform": "common.registry",
    "Request": "common.request",
    "Selection": "common.selection",
    "select": "common.select",
    "supports_combination": "common.select",
    "Software": "common.software",
    "StepMetadata": "common.step",
    "ConfigError": "config",
    "HalError": "config",
    "read_shape": "config",
}

_MODULES = ("backend", "convert", "layouts", "ops", "pages", "parallel", "testing")

__all__ = ["__version__", *_HOMES]

# Hidden from type checkers, to which a module that answers for any name has every name.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _MODULES:
            return import_module(f"hal.{name}")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'hal' has no attribute {name!r}")
        try:
            module = import_module(f"hal.{home}")
        except ModuleNotFoundError as error:
            from .common.extras import stand_in

            return stand_in(f"hal.{name}", error)
        value = globals()[name] = getattr(module, "Backend" if name == "Kernels" else name)
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
