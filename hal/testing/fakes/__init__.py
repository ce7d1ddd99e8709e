"""Stand-ins for vendors' libraries: real signatures, stated constraints and odd returns, computed by the float64 reference.

with installed(make_fakes(read_signatures(), arch="sm_90", libraries={"flash_attn_3": "3.0.0"})):
    backend = FlashAttention(Device.from_arch("sm_90", torch_device="cpu"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType

from . import aiter, flash_attention, ipex, xpu_kernels
from .modules import Recorded, installed, make_modules

__all__ = ["installed", "make_fakes"]

_LIBRARIES: Mapping[str, Callable[[str, str], Mapping[str, Callable[..., object]]]] = {
    "flash_attn": flash_attention.make_second,
    "flash_attn_3": flash_attention.make_third,
    "flash_attn_4": flash_attention.make_fourth,
    "vllm_flash_attn": flash_attention.make_fork,
    "aiter": aiter.make_library,
    "vllm_xpu_kernels": xpu_kernels.make_library,
    "ipex": ipex.make_library,
}
_FLAGS = {
    "vllm_flash_attn": {"FA2_AVAILABLE": True, "FA3_AVAILABLE": True, "FA4_AVAILABLE": True},
    "vllm_xpu_kernels": {"FA2_AVAILABLE": True},
}


def make_fakes(recorded: Iterable[Recorded], *, arch: str, libraries: Mapping[str, str]) -> dict[str, ModuleType]:
    """Modules by name for some libraries in recorded releases, as they would behave on an arch.

    ValueError for a library that has no stand-in, or a release of which no signature is recorded.
    """
    signatures = list(recorded)
    modules: dict[str, ModuleType] = {}
    for library, release in libraries.items():
        if library not in _LIBRARIES:
            raise ValueError(f"there is no stand-in for {library!r}; there are: {', '.join(sorted(_LIBRARIES))}")
        known = [row for row in signatures if row.library == library and row.release == release]
        if not known:
            releases = sorted({row.release for row in signatures if row.library == library})
            raise ValueError(f"no signature of {library} {release} is recorded; recorded releases: {', '.join(releases)}")
        modules |= make_modules(known, _LIBRARIES[library](arch, release), _FLAGS.get(library, {}))
    return modules
