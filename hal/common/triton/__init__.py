"""The portable kernels that CUDA, ROCm and XPU share, in Triton, and the machinery to launch them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hal.common.request import Request

    from .specialisation import Specialisation

__all__ = ["specialisations"]


def specialisations(request: Request) -> tuple[Specialisation, ...]:
    """Everything that the portable kernels compile for a request's layer on its device's arch, each once.

    It needs neither triton nor torch. NoBackend where the platform has no portable backend, or its tiles do not fit.
    """
    from hal.common.errors import NoBackend
    from hal.common.refusal import explain_refusal
    from hal.common.registry import backends

    from .backend import TritonBackend
    from .specialise import list_specialisations
    from .tiles import read_machine

    names = [cls for cls in backends().values() if issubclass(cls, TritonBackend) and cls.platform == request.device.platform]
    portable = next((cls for cls in names if cls.provides is None), None)
    reasons = () if portable is None else explain_refusal(portable, request)
    if portable is None or reasons:
        name = portable.name if portable is not None else f"{request.device.platform}:triton"
        text = "; ".join(map(str, reasons)) or "there is no such backend"
        raise NoBackend(f"{name} compiles nothing for {request.describe()}: {text}", {name: reasons})
    block_size = request.block_size or portable.preferred_block_size(request)
    return list_specialisations(read_machine(portable.package, request.device.arch), request, block_size)
