"""The part of a vendor backend that has nothing to do with the vendor: refusals from its facts, and loading its library."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, ClassVar

from hal.common.backends.judging import find_page_size
from hal.common.contract.backend import PHASES, Backend
from hal.common.contract.device import Device
from hal.common.contract.errors import BackendError
from hal.common.contract.reason import Reason, order_reasons, show
from hal.common.contract.request import Request

from .facts import KernelFacts
from .refusal import ATTENTION_CALLS, describe_block_sizes, explain_kernels
from .resolve import AbsentError, InterfaceError, Resolver, check_flag, check_interface, load_module

if TYPE_CHECKING:
    from hal.common.contract.call_values import KVCache


# From the usual page size up to 32 times as large: pages of 256 are the largest that any recorded kernel asks for.
_MAX_DOUBLINGS = 6


class VendorBackend(Backend):
    """Base of an adapter, to be listed before the platform's portable backend.

    kernels: what the vendor's kernels take. alternatives: its libraries where any of them will do, as against `libraries`,
    which are all needed. Making one loads the libraries that the device's arch would use: BackendError, chained to what
    was raised, where one is installed and does not load, and where none is installed.
    """

    kernels: ClassVar[tuple[KernelFacts, ...]] = ()

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.resolver = Resolver()
        self._chosen = self._load_kernels()

    @classmethod
    def explain_refusal(cls, request: Request) -> tuple[Reason, ...]:
        call = ATTENTION_CALLS.get(request.family)
        if call is None or not any(request.device.arch in kernel.archs for kernel in cls.kernels):
            # An arch without any kernel is in the declared capabilities already.
            return ()
        size = find_page_size(cls, request)
        # Kernels that all serve both phases are judged once.
        is_alike = all(len(kernel.phases) == len(PHASES) for kernel in cls.kernels if kernel.call == call)
        phases = ("",) if is_alike else PHASES
        by_phase = [explain_kernels(cls.kernels, call, phase, request, size) for phase in phases]
        if all(by_phase):
            return order_reasons(reason for reasons in by_phase for reason in reasons)
        # A phase without a kernel of the vendor's runs on what is inherited, so that has to fit.
        return super().explain_refusal(request) if any(by_phase) else ()

    @classmethod
    def explain_call_refusal(cls, call: str, phase: str, request: Request) -> tuple[Reason, ...]:
        if cls.provides is None or call not in cls.provides:
            return ()
        return explain_kernels(cls.kernels, call, phase, request, find_page_size(cls, request))

    @classmethod
    def preferred_block_size(cls, request: Request) -> int:
        """The platform's usual page size, or the next larger one that the kernels for this request read."""
        usual = super().preferred_block_size(request)
        call = ATTENTION_CALLS.get(request.family, "")
        sizes = [usual << doublings for doublings in range(_MAX_DOUBLINGS)]
        return next((size for size in sizes if not explain_kernels(cls.kernels, call, "decode", request, size)), usual)

    def choose_kernel(self, call: str, family: str, phase: str = "", layout: str = "") -> KernelFacts:
        """The kernel for a call on this device, of a cache's layout where one is named.

        BackendError names the libraries that would have it.
        """
        for kernel in self._chosen:
            is_for = family in kernel.families and (not phase or phase in kernel.phases)
            if kernel.call == call and is_for and (not layout or layout in kernel.kv_layouts):
                return kernel
        would = sorted({k.library for k in self.kernels if k.call == call and self.device.arch in k.archs})
        raise BackendError(
            f"{self.name} has no {call} for {family} layers on {self.device.target} here; "
            f"{'it would take ' + ' or '.join(would) if would else 'no library has one for this arch'}"
        )

    def check_page(self, kernel: KernelFacts, cache: KVCache) -> None:
        """Raise BackendError where a kernel does not read pages of the cache's size."""
        if not kernel.takes_block_size(cache.block_size):
            raise BackendError(
                f"{self.name}: {kernel.target} reads pages of {describe_block_sizes(kernel)}; the cache has {cache.block_size}"
            )

    def _load_kernels(self) -> tuple[KernelFacts, ...]:
        """One row per call, family and phase: the first whose library is installed."""
        chosen: list[KernelFacts] = []
        absent: dict[str, AbsentError] = {}
        covered: set[tuple[str, ...]] = set()
        for kernel in self.kernels:
            served = set(product((kernel.call,), kernel.families, kernel.phases, kernel.kv_layouts))
            if self.device.arch not in kernel.archs or served <= covered:
                continue
            try:
                self.resolver.find(kernel.target, *kernel.other_targets)
                shown = kernel.beside(kernel.interface) if kernel.interface else kernel.target
                check_interface(shown, self.resolver.find(shown, *kernel.other_targets)[1], kernel.foreign_arguments)
                if kernel.flag:
                    check_flag(load_module(kernel.target.partition(":")[0]), kernel.flag, kernel.flag_reason)
            except AbsentError as error:
                absent[kernel.library] = error
                continue
            chosen.append(kernel)
            covered |= served
        strange = next((error for error in absent.values() if isinstance(error, InterfaceError)), None)
        if not chosen and strange is not None:
            raise BackendError(f"{self.name} on {self.device.target} finds no kernel: {strange}") from strange
        if not chosen:
            needed = show(tuple(sorted(absent))) if absent else "a library for this arch"
            raise BackendError(
                f"{self.name} on {self.device.target} needs {needed}, which is not installed; install it, or choose another"
            ) from next(iter(absent.values()), None)
        return tuple(chosen)
