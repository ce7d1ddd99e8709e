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
    from .common.backends.detection import detect as detect
    from .common.backends.kernels import kernels as kernels
    from .common.backends.registry import register_backend as register_backend
    from .common.backends.registry import register_platform as register_platform
    from .common.backends.select import select as select
    from .common.backends.select import supports_combination as supports_combination
    from .common.contract.backend import Backend as Backend
    from .common.contract.batch import Batch as Batch
    from .common.contract.call_values import CompressedBatch as CompressedBatch
    from .common.contract.call_values import IndexInputs as IndexInputs
    from .common.contract.call_values import KVCache as KVCache
    from .common.contract.call_values import PagedBatch as PagedBatch
    from .common.contract.call_values import Segment as Segment
    from .common.contract.call_values import VarlenBatch as VarlenBatch
    from .common.contract.capabilities import Capabilities as Capabilities
    from .common.contract.compressor import Compressor as Compressor
    from .common.contract.device import Device as Device
    from .common.contract.device_batch import DeviceBatch as DeviceBatch
    from .common.contract.errors import BackendError as BackendError
    from .common.contract.errors import BatchError as BatchError
    from .common.contract.errors import CapacityError as CapacityError
    from .common.contract.errors import CheckpointError as CheckpointError
    from .common.contract.errors import InputError as InputError
    from .common.contract.errors import LayoutError as LayoutError
    from .common.contract.errors import MissingLibraryError as MissingLibraryError
    from .common.contract.errors import NoBackend as NoBackend
    from .common.contract.errors import NotBuiltError as NotBuiltError
    from .common.contract.limits import Limits as Limits
    from .common.contract.masking import Masking as Masking
    from .common.contract.parallel import Parallel as Parallel
    from .common.contract.plan import Plan as Plan
    from .common.contract.platform import Platform as Platform
    from .common.contract.reason import Reason as Reason
    from .common.contract.request import Request as Request
    from .common.contract.selection import Selection as Selection
    from .common.contract.software import Software as Software
    from .common.contract.step import StepMetadata as StepMetadata
    from .common.planning.plan import installed as installed
    from .common.planning.plan import plan as plan
    from .common.running.attention import Attention as Attention
    from .common.stepping.builder import MetadataBuilder as MetadataBuilder
    from .config import ConfigError as ConfigError
    from .config import HalError as HalError
    from .config import read_shape as read_shape

    Kernels = Backend

__version__ = "0.1.0"

# Each public name and where it lives; nothing is imported before it is used, so that planning never loads a tensor library.
_HOMES = {
    "Attention": "common.running.attention",
    "Backend": "common.contract.backend",
    "Kernels": "common.contract.backend",
    "Batch": "common.contract.batch",
    "Capabilities": "common.contract.capabilities",
    "Compressor": "common.contract.compressor",
    "Device": "common.contract.device",
    "detect": "common.backends.detection",
    "DeviceBatch": "common.contract.device_batch",
    "BackendError": "common.contract.errors",
    "BatchError": "common.contract.errors",
    "CapacityError": "common.contract.errors",
    "CheckpointError": "common.contract.errors",
    "InputError": "common.contract.errors",
    "LayoutError": "common.contract.errors",
    "MissingLibraryError": "common.contract.errors",
    "NoBackend": "common.contract.errors",
    "NotBuiltError": "common.contract.errors",
    "IndexInputs": "common.contract.call_values",
    "KVCache": "common.contract.call_values",
    "CompressedBatch": "common.contract.call_values",
    "PagedBatch": "common.contract.call_values",
    "VarlenBatch": "common.contract.call_values",
    "Masking": "common.contract.masking",
    "Segment": "common.contract.call_values",
    "Limits": "common.contract.limits",
    "kernels": "common.backends.kernels",
    "Parallel": "common.contract.parallel",
    "MetadataBuilder": "common.stepping.builder",
    "Plan": "common.contract.plan",
    "installed": "common.planning.plan",
    "plan": "common.planning.plan",
    "Platform": "common.contract.platform",
    "Reason": "common.contract.reason",
    "register_backend": "common.backends.registry",
    "register_platform": "common.backends.registry",
    "Request": "common.contract.request",
    "Selection": "common.contract.selection",
    "select": "common.backends.select",
    "supports_combination": "common.backends.select",
    "Software": "common.contract.software",
    "StepMetadata": "common.contract.step",
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
            from .common.contract.extras import stand_in

            return stand_in(f"hal.{name}", error)
        value = globals()[name] = getattr(module, "Backend" if name == "Kernels" else name)
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
