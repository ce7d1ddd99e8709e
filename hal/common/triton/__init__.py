"""The portable kernels that CUDA, ROCm and XPU share, in Triton, and the machinery to launch them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hal.common.contract.request import Request

    from .specialisation import Specialisation

__all__ = ["specialisations"]


def specialisations(request: Request) -> tuple[Specialisation, ...]:
    """Everything that the portable kernels compile for a request's layer on its device's arch, each once.

    It needs neither triton nor torch. NoBackend where the platform has no portable backend, or its tiles do not fit.
    """
    from hal.common.backends.registry import backends
    from hal.common.contract.errors import NoBackend

    from .backend import TritonBackend
    from .listing import list_portable

    platform = request.device.platform
    for cls in backends().values():
        if issubclass(cls, TritonBackend) and cls.platform == platform and cls.provides is None:
            return list_portable(cls, cls.package, request)
    name = f"{platform}:triton"
    raise NoBackend(f"{name} compiles nothing for {request.describe()}: there is no such backend", {name: ()})
