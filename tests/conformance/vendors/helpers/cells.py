"""Which adapter is held to the contract on which arch, with which library in which recorded release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from hal.common.backends.registry import find_backend
from hal.common.contract.backend import CALLS_BY_FAMILY, Backend
from hal.common.contract.device import Device
from hal.common.contract.software import Software
from hal.common.vendor import VendorBackend
from hal.matrix.signatures import read_signatures
from hal.testing import Case, Profile, ReferenceBackend, conformance_cases
from hal.testing.stand_ins import installed, make_fakes
from hal.testing.suite import pipeline

SIGNATURES = read_signatures()

SEVERAL_LISTS = re.compile("_lists|empty_then_full|full_then_empty")
ONE_QUERY = re.compile("-(decode|single_token|zero_requests|unused_rows)(-|$)")

PROFILE = Profile(
    name="vendor",
    crossed=False,
    block_sizes=(1, 16, 64, 256),
    heads=((4, 2), (3, 1)),
    widths=((64, 64), (128, 128)),
    latents=((512, 64),),
    latent_heads=(4, 8, 1),
    index=(4, 32),
)
VARLEN = replace(PROFILE, widths=((64, 64), (192, 128)))
NO_ROPE = replace(PROFILE, latents=((512, 64), (512, 0)), latent_heads=(4, 16, 1))
LATENT_WIDTHS = replace(NO_ROPE, latent_heads=(8, 16, 20))
MANY_HEADS = replace(PROFILE, latent_heads=(4, 16, 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One call of a cell: the profile it is checked with, and what the kernel takes of what the backend declares.

    only: the ids of batches that it takes.
    """

    call: str
    profile: Profile = PROFILE
    note: str = ""
    changes: Mapping[str, Any]
    only: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An adapter on an arch with a library."""

    backend: str
    arch: str
    library: str
    release: str
    held: tuple[Held, ...]

    @property
    def id(self) -> str:
        """Readable and unique."""
        return f"{self.arch}-{self.library}-{self.release}"

    @property
    def device(self) -> Device:
        """The arch, its tensors on the CPU."""
        return Device.from_arch(self.arch, torch_device="cpu")

    @property
    def software(self) -> Software:
        """The library, and no other."""
        return Software({self.library: self.release})

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The stand-ins importable."""
        fakes = make_fakes(SIGNATURES, arch=self.arch, libraries={self.library: self.release})
        # The suite's cases of several calls have a latent of their own, narrower than any that vendors take.
        with installed(fakes), mock.patch.multiple(pipeline, LORA=512, ROPE=64):
            yield

    def cases(self, held: Held) -> tuple[Case, ...]:
        """The suite's cases of one call."""
        adapter = self.adapter(held)
        cases = conformance_cases(adapter, held.profile, calls={held.call})
        if held.only is not None:
            return tuple(case for case in cases if held.only.search(case.id))
        if held.call == "sparse_mla" and not held.changes["lse"]:
            # Several lists are merged by their LSE.
            return tuple(case for case in cases if not SEVERAL_LISTS.search(case.id))
        return cases

    def adapter(self, held: Held) -> type[VendorBackend]:
        """The adapter declared as narrow as its kernel is here; calls that it inherits come from the reference."""
        cls = find_backend(self.backend)
        assert issubclass(cls, VendorBackend)
        assert cls.provides is not None
        portable = {name: getattr(ReferenceBackend, name) for name in _contract_calls() - cls.provides}
        declared = replace(ReferenceBackend.capabilities, **{**_NARROW, **held.changes})
        return type(f"Narrow{cls.__name__}", (cls,), {**portable, "capabilities": declared})


_NARROW = {
    "chunk": False,
    "masked_varlen": False,
    "deterministic": False,
    "key_ranges": False,
    "inner_sinks": frozenset(),
    "max_index_pool": 1,
    "families": frozenset({"mla"}),
    "kv_layouts": {"attention": ("kv",), "mla": ("latent",), "sparse_mla": ("latent",)},
    "index_layouts": ("indexer",),
}


def _contract_calls() -> frozenset[str]:
    calls = {call for calls in CALLS_BY_FAMILY.values() for call in calls}
    return frozenset(call for call in calls if hasattr(ReferenceBackend, call) and call in Backend.__dict__)


HALF = ("float16", "bfloat16")
FULL = {"dtypes": HALF, "families": frozenset({"attention"}), "lse": True}
LATENT = {"dtypes": HALF, "families": frozenset({"mla"}), "window": False, "softcap": False, "non_causal": False}
SPARSE = {"dtypes": HALF, "families": frozenset({"sparse_mla"}), "lse": True}
BFLOAT = {"dtypes": ("bfloat16",)}
PLAIN = {**FULL, "lse": False, "non_causal": False, "window": False, "block_size_multiple": 16}

THIRD = (
    Held(call="paged_attention", changes=FULL),
    Held(call="paged_attention", profile=NO_ROPE, note="latent", changes={**LATENT, "lse": True}),
    Held(call="varlen_attention", profile=VARLEN, changes={**FULL, "families": frozenset({"mla"})}),
    Held(call="sparse_mla", profile=NO_ROPE, changes=SPARSE),
)
SECOND = (
    Held(call="paged_attention", changes={**FULL, "block_size_multiple": 256}),
    Held(call="varlen_attention", profile=VARLEN, changes={**FULL, "families": frozenset({"mla"})}),
)
FORK_SECOND = (
    Held(call="paged_attention", changes={**FULL, "block_size_multiple": 16}),
    Held(call="varlen_attention", profile=VARLEN, changes={**FULL, "families": frozenset({"mla"})}),
)
GATHER = Held(call="sparse_mla", profile=MANY_HEADS, changes={**SPARSE, **BFLOAT})
FOURTH = (
    Held(call="paged_attention", changes={**FULL, **BFLOAT}),
    Held(call="varlen_attention", profile=VARLEN, changes={**FULL, **BFLOAT, "families": frozenset({"mla"})}),
    GATHER,
)
UNIFIED = Held(call="paged_attention", changes={**PLAIN, "block_size_multiple": 128}, only=ONE_QUERY)
XPU_PAGED = {**FULL, "softcap": False, "block_size_multiple": 16}
XPU_LATENT = {**LATENT, "non_causal": True, "block_size_multiple": 16}

RECORDS = {"kv_layouts": {"sparse_mla": ("fp8_ds_mla",)}, "block_size_multiple": 64}
FLASH_MLA_RECORDS = Held(
    call="sparse_mla",
    profile=replace(LATENT_WIDTHS, latents=((512, 64),)),
    note="records",
    changes={**SPARSE, **BFLOAT, **RECORDS},
    # Its second list lies in pages of 128 with gaps between them, which are refused.
    only=re.compile("^(?!.*two_strided_lists)"),
)
FLASH_MLA = Held(call="sparse_mla", profile=LATENT_WIDTHS, changes={**SPARSE, **BFLOAT})

CELLS = (
    Cell(backend="cuda:flash_attention", arch="sm_90", library="flash_attn_3", release="3.0.0", held=THIRD),
    Cell(backend="cuda:flash_attention", arch="sm_90", library="vllm_flash_attn", release="0.33", held=THIRD),
    Cell(backend="cuda:flash_attention", arch="sm_80", library="flash_attn", release="2.8.3", held=SECOND),
    Cell(backend="cuda:flash_attention", arch="sm_80", library="vllm_flash_attn", release="0.33", held=FORK_SECOND),
    Cell(backend="cuda:flash_attention", arch="sm_100", library="flash_attn_4", release="4.0.0b36", held=FOURTH),
    Cell(backend="cuda:flash_attention", arch="sm_103", library="vllm_flash_attn", release="0.33", held=(GATHER,)),
    Cell(backend="cuda:flash_mla", arch="sm_90", library="flash_mla", release="1.0.0", held=(FLASH_MLA, FLASH_MLA_RECORDS)),
    Cell(backend="cuda:flash_mla", arch="sm_90", library="vllm_flash_mla", release="0.33", held=(FLASH_MLA, FLASH_MLA_RECORDS)),
    Cell(backend="cuda:flash_mla", arch="sm_100", library="vllm_flash_mla", release="0.33", held=(FLASH_MLA,)),
    Cell(
        backend="rocm:aiter",
        arch="gfx942",
        library="aiter",
        release="0.1.7.post2.dev18",
        held=(Held(call="sparse_mla", profile=MANY_HEADS, changes={**SPARSE, **BFLOAT, "lse": False}),),
    ),
    Cell(backend="rocm:aiter", arch="gfx950", library="aiter", release="0.1.21", held=(UNIFIED, GATHER)),
    Cell(
        backend="xpu:vllm_kernels",
        arch="pvc",
        library="vllm_xpu_kernels",
        release="0.1.16.2",
        held=(
            Held(call="paged_attention", note="lse", changes=XPU_PAGED),
            Held(call="paged_attention", note="no_lse", changes={**XPU_PAGED, "lse": False}),
            Held(call="paged_attention", note="latent_lse", changes={**XPU_LATENT, "lse": True}),
            Held(call="paged_attention", note="latent", changes={**XPU_LATENT, "lse": False}),
            Held(
                call="varlen_attention",
                profile=VARLEN,
                changes={**FULL, "softcap": False, "families": frozenset({"mla"})},
            ),
        ),
    ),
    Cell(
        backend="xpu:ipex",
        arch="pvc",
        library="ipex",
        release="2.8.0",
        held=(Held(call="paged_attention", changes={**PLAIN, "softcap": False}),),
    ),
)
