"""What one portable backend compiles for a request."""

from __future__ import annotations

from hal.common.backends.judging import explain_refusal, fit_page_size
from hal.common.contract.backend import Backend
from hal.common.contract.errors import NoBackend
from hal.common.contract.request import Request

from .specialisation import Specialisation
from .specialise import list_specialisations
from .tiles import read_machine


def list_portable(portable: type[Backend], package: str, request: Request) -> tuple[Specialisation, ...]:
    """Everything that a portable backend compiles for a request, each once; NoBackend where it does not serve it.

    package: the platform's, which holds its tiles.
    """
    reasons = explain_refusal(portable, request)
    if reasons:
        text = "; ".join(map(str, reasons))
        raise NoBackend(f"{portable.name} compiles nothing for {request.describe()}: {text}", {portable.name: reasons})
    machine = read_machine(package, request.device.arch)
    return list_specialisations(machine, request, fit_page_size(portable, request))
