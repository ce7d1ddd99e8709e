"""Whether a vendor's kernels serve a call of a request, as reasons; a pure function of facts and request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hal.common.contract.reason import Reason, order_reasons
from hal.common.contract.request import Request
from hal.common.contract.software import version_tuple

from .facts import KernelFacts

ATTENTION_CALLS = {"attention": "paged_attention", "mla": "paged_attention", "sparse_mla": "sparse_mla"}
"""The call after whose provider a layer's backend is named, by family."""


def explain_kernels(
    kernels: Sequence[KernelFacts], call: str, phase: str, request: Request, default_block_size: int
) -> tuple[Reason, ...]:
    """Nothing where one of the kernels serves the call in the phase, else what stands against the nearest of them.

    phase "" asks whether it is served in any. default_block_size: the page size where the request leaves it open.
    """
    written = [kernel for kernel in kernels if kernel.call == call]
    if not written:
        named = {family for k in kernels for family in k.families if ATTENTION_CALLS.get(family) == k.call}
        return (Reason("kind", request.family, tuple(sorted(named))),)
    here = [kernel for kernel in written if request.device.arch in kernel.archs]
    if not here:
        return (Reason("arch", request.device.arch, _all(kernel.archs for kernel in written)),)
    able = [k for k in here if request.family in k.families and (not phase or phase in k.phases)]
    if not able:
        served = sorted({f"{family} {phase}" for k in here for family in k.families for phase in k.phases})
        return (Reason("kind", f"{request.family} {phase}".strip(), tuple(served)),)
    present = [kernel for kernel in able if not _library_reasons(kernel, request)]
    verdicts = [order_reasons(_limit_reasons(kernel, able, request, default_block_size)) for kernel in present or able]
    nearest = min(verdicts, key=len)
    return nearest if present else (*_join_library_reasons(able, request), *nearest)


def _all(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for group in groups for item in group))


def _library_reasons(kernel: KernelFacts, request: Request) -> tuple[Reason, ...]:
    software = request.software
    if software is None:
        return ()
    version, failure = software.version(kernel.library), software.failure(kernel.library)
    if version is None:
        return (Reason("library_absent", "nothing", kernel.library),)
    if failure is not None:
        return (Reason("library_broken", failure, kernel.library),)
    return () if is_known_version(kernel, version) else (Reason("library_version", version, kernel.library),)


def is_known_version(kernel: KernelFacts, version: str) -> bool:
    """Whether a kernel's interface is known in a release; not where the version cannot be read."""
    number = version_tuple(version)
    if not number or (kernel.minimum and number < version_tuple(kernel.minimum)):
        return False
    return not kernel.below or number < version_tuple(kernel.below)


def _describe_versions(library: str, kernels: Sequence[KernelFacts]) -> str:
    """A library and the releases over which some kernels' interfaces are known."""
    rows = [kernel for kernel in kernels if kernel.library == library]
    lowest = min((row.minimum for row in rows), key=version_tuple)
    highest = max((row.below for row in rows), key=version_tuple)
    bounds = [f"from {lowest}" if lowest else "", f"below {highest}" if highest else ""]
    return " ".join([library, *filter(None, bounds)])


def _join_library_reasons(kernels: Sequence[KernelFacts], request: Request) -> tuple[Reason, ...]:
    """What is known against each library; those that are absent in one reason, since any of them would do."""
    reasons = list(dict.fromkeys(reason for kernel in kernels for reason in _library_reasons(kernel, request)))
    absent = tuple(str(reason.want) for reason in reasons if reason.code == "library_absent")
    others = [reason for reason in reasons if reason.code != "library_absent"]
    if absent and not others:
        return (Reason("library_absent", "nothing", absent if len(absent) > 1 else absent[0]),)
    return tuple(
        replace(reason, want=_describe_versions(str(reason.want), kernels)) if reason.code == "library_version" else reason
        for reason in others
    )


def _limit_reasons(
    kernel: KernelFacts, able: Sequence[KernelFacts], request: Request, default_block_size: int
) -> Iterator[Reason]:
    call = kernel.call
    if request.dtype not in kernel.dtypes:
        yield Reason("dtype", request.dtype, kernel.dtypes)
    yield from _head_reasons(kernel, request)
    yield from _width_reasons(kernel, call, request)
    if call in ATTENTION_CALLS.values():
        # What a request leaves open is the layout of its own elements.
        wanted = ("latent" if request.layer.mla is not None else "kv") if request.kv_layout == "auto" else request.kv_layout
        if wanted not in kernel.kv_layouts:
            yield Reason("kv_layout", wanted, kernel.kv_layouts)
    if call == "paged_attention" or "latent" not in kernel.kv_layouts:
        size = request.block_size or default_block_size
        if not kernel.takes_block_size(size):
            yield Reason("block_size", size, describe_block_sizes(kernel), _suggest_block_size(kernel, request))
    yield from _mask_reasons(kernel, request)
    if kernel.max_query_len is not None and request.num_spec_tokens >= kernel.max_query_len:
        yield Reason("spec_decode", request.num_spec_tokens, f"at most {kernel.max_query_len - 1}")
    cause = _why_lse(call, request)
    if cause and not kernel.lse:
        with_lse = next((row for row in able if row.lse), None)
        fix = f"{_describe_versions(with_lse.library, (with_lse,))} returns one" if with_lse is not None else ""
        yield Reason("lse", cause, f"none ({cause})", fix)


def _head_reasons(kernel: KernelFacts, request: Request) -> Iterator[Reason]:
    heads, ranks = request.heads_on_rank, request.parallel.dcp
    if ranks == 1:
        if kernel.most_heads is not None and heads > kernel.most_heads:
            yield Reason("heads", f"{heads} query heads per rank", f"at most {kernel.most_heads}")
        return
    # A DCP group gathers the query heads of its ranks before the call; together they have no more than the layer.
    limit, gathered = kernel.max_gathered_heads or kernel.most_heads, min(heads * ranks, request.layer.num_heads)
    if limit is not None and gathered > limit:
        yield Reason("heads", f"{gathered} query heads gathered from {ranks} ranks", f"at most {limit}")


def _width_reasons(kernel: KernelFacts, call: str, request: Request) -> Iterator[Reason]:
    layer = request.layer
    if layer.mla is not None and call != "varlen_attention":
        lora, rope = layer.mla.kv_lora_rank, layer.mla.qk_rope_head_dim
        most = kernel.max_lora if kernel.max_lora is not None else lora
        if not kernel.min_lora <= lora <= most:
            bounds = str(most) if kernel.min_lora == most else f"{kernel.min_lora} to {most}"
            yield Reason("head_dim", f"a latent of {lora}", bounds)
        if kernel.ropes and rope not in kernel.ropes:
            yield Reason("head_dim", f"a rotary part of {rope}", kernel.ropes)
        return
    if (layer.head_dim, layer.v_head_dim) in kernel.width_pairs:
        return
    if kernel.head_dims and layer.head_dim not in kernel.head_dims:
        yield Reason("head_dim", layer.head_dim, kernel.head_dims)
    elif kernel.max_head_dim is not None and (layer.head_dim > kernel.max_head_dim or layer.head_dim % 8):
        yield Reason("head_dim", layer.head_dim, f"a multiple of 8 up to {kernel.max_head_dim}")
    if kernel.pads_values and layer.v_head_dim > layer.head_dim:
        yield Reason("v_head_dim", layer.v_head_dim, f"at most the keys' {layer.head_dim}")
    elif not kernel.pads_values and layer.v_head_dim != layer.head_dim:
        yield Reason("v_head_dim", layer.v_head_dim, f"the keys' {layer.head_dim}")


def describe_block_sizes(kernel: KernelFacts) -> str:
    """A kernel's page sizes in words."""
    *single, multiple = kernel.block_sizes
    return ", ".join([*map(str, single), f"multiples of {multiple}"])


def _suggest_block_size(kernel: KernelFacts, request: Request) -> str:
    return f"plan with block_size={kernel.block_sizes[0]}" if request.block_size is None else ""


def _mask_reasons(kernel: KernelFacts, request: Request) -> Iterator[Reason]:
    layer = request.layer
    if layer.window is not None and not kernel.window:
        yield Reason("window", layer.window, "full attention only")
    elif layer.window is not None and not layer.causal:
        yield Reason("window", f"{layer.window} on both sides", "windows on causal layers only")
    if layer.chunk is not None:
        yield Reason("chunk", layer.chunk, "unchunked attention only")
    if layer.softcap is not None and not kernel.softcap:
        yield Reason("softcap", layer.softcap, "no softcap")
    if not layer.causal and not kernel.non_causal:
        yield Reason("causal", False, "causal layers only")
    if layer.position_bias is not None:
        yield Reason("position_bias", layer.position_bias, "layers without one")


def _why_lse(call: str, request: Request) -> str:
    if call == "varlen_attention":
        return "context comes in chunks that are merged"
    if request.layer.sink:
        return "the sink is applied to it"
    if request.parallel.dcp > 1:
        return "ranks are merged by it"
    return "asked for" if request.need_lse else ""
