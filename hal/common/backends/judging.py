"""What stands between a backend and a request: declared capabilities compared with the combination, as reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import lcm

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import GRAPH_LEVELS, Capabilities
from hal.common.contract.limits import check_positive_int
from hal.common.contract.quiet import describe_error
from hal.common.contract.reason import Reason, order_reasons
from hal.common.contract.request import Request
from hal.common.contract.software import version_tuple

from .registry import recall


def explain_refusal(backend: type[Backend], request: Request) -> tuple[Reason, ...]:
    """Every reason why a backend cannot serve a request, the environment's first; empty when it can."""
    if backend.platform != request.device.platform:
        # Nothing else about another platform's backend is worth a reader's time.
        return (Reason("platform", request.device.target, backend.platform),)
    reasons = order_reasons(_reasons(backend, request))
    if reasons or request.block_size is not None or not _has_own_page_size(backend):
        return reasons
    return ask_hook(backend, _ask_page_size, backend, request)


def ask_hook(backend: type[Backend], hook: Callable[..., Iterable[Reason]], *args: object) -> tuple[Reason, ...]:
    """A backend's own answer; what it raises instead is a reason too, since one's fault must not hide the others' answers."""
    try:
        return _read_answer(hook(*args))
    except Exception as error:  # noqa: BLE001 - a third party's code, kept as a reason
        return (Reason("library_broken", describe_error(error), backend.name),)


def find_failure(backend: type[Backend], request: Request) -> Exception | None:
    """What a backend's own check of a request raises, None where it answers."""
    try:
        _read_answer(backend.explain_refusal(request))
        _ask_page_size(backend, request)
    except Exception as error:  # noqa: BLE001 - a third party's code, kept
        return error
    return None


def _read_answer(found: Iterable[Reason]) -> tuple[Reason, ...]:
    answer = tuple(found)
    for reason in answer:
        if not isinstance(reason, Reason):
            raise TypeError(f"{reason!r} is no Reason")
    return answer


def find_page_size(backend: type[Backend], request: Request) -> int:
    """The request's page size, or the one that a backend prefers for it; InputError where that is none."""
    return request.block_size or recall(("page", backend, request), lambda: _prefer_page_size(backend, request))


def fit_page_size(backend: type[Backend], request: Request) -> int:
    """find_page_size, made a multiple of what ranks and the tokens of a shared row ask for."""
    interleave, shared = request.parallel.interleave, request.tokens_per_row
    size = find_page_size(backend, request)
    # Where tokens share a row, a page of two rows at least: one that fills a page costs a block table cell of its own.
    unit = lcm(interleave, 2 * shared if shared > 1 else 1)
    return -(-size // unit) * unit


def _has_own_page_size(backend: type[Backend]) -> bool:
    """Whether a backend works its page size out, which may go wrong, in place of declaring it."""
    return getattr(backend.preferred_block_size, "__func__", None) is not Backend.preferred_block_size.__func__  # type: ignore[attr-defined]


def _prefer_page_size(backend: type[Backend], request: Request) -> int:
    size = backend.preferred_block_size(request)
    check_positive_int("preferred_block_size", size)
    return size


def _ask_page_size(backend: type[Backend], request: Request) -> tuple[Reason, ...]:
    find_page_size(backend, request)
    return ()


def _reasons(backend: type[Backend], request: Request) -> Iterator[Reason]:
    device, capabilities = request.device, backend.capabilities
    if capabilities is None:
        yield Reason("not_built", backend.name, "a backend whose calls are written")
        return
    if capabilities.archs and device.arch not in capabilities.archs:
        yield Reason("arch", device.arch, capabilities.archs)
    yield from _library_reasons(backend, request)
    yield from _kind_reasons(capabilities, request)
    yield from _width_reasons(capabilities, request)
    yield from _mask_reasons(capabilities, request)
    yield from _mode_reasons(capabilities, request)
    yield from ask_hook(backend, backend.explain_refusal, request)


def _library_reasons(backend: type[Backend], request: Request) -> Iterator[Reason]:
    software = request.software
    if software is None:
        return
    for library in backend.libraries:
        version = software.version(library.name)
        failure = software.failure(library.name)
        if version is None:
            yield Reason("library_absent", "nothing", library.name)
        elif failure is not None:
            yield Reason("library_broken", failure, library.name)
        elif library.minimum and version_tuple(version) < version_tuple(library.minimum):
            yield Reason("library_version", version, f"{library.name} {library.minimum} or later")


def _kind_reasons(capabilities: Capabilities, request: Request) -> Iterator[Reason]:
    family = request.family
    if request.dtype not in capabilities.dtypes:
        yield Reason("dtype", request.dtype, capabilities.dtypes)
    multiple = capabilities.block_size_multiple
    if request.block_size is not None and request.block_size % multiple:
        yield Reason("block_size", request.block_size, f"multiples of {multiple}")
    shared = request.tokens_per_row
    if request.block_size is not None and request.block_size % shared:
        yield Reason("block_size", request.block_size, f"multiples of {shared}, the tokens that share a cache row")
    if request.layer.block_sparse is not None:
        yield Reason("kind", "block-sparse attention", capabilities.families)
    if family not in capabilities.families:
        if family == "compressed":
            ratio = request.layer.compress_ratio
            keeps = f"keeps one entry per {ratio} tokens" if ratio else "keeps its window alone"
            yield Reason("compressed", f"a compressed layer that {keeps}", "uncompressed layers")
        else:
            yield Reason("kind", family, capabilities.families)
        return
    layouts = capabilities.kv_layouts.get(family, ())
    if request.kv_layout not in ("auto", *layouts):
        yield Reason("kv_layout", request.kv_layout, layouts)


def _width_reasons(capabilities: Capabilities, request: Request) -> Iterator[Reason]:
    layer = request.layer
    if capabilities.head_dims and layer.head_dim not in capabilities.head_dims:
        yield Reason("head_dim", layer.head_dim, capabilities.head_dims)
    if capabilities.v_head_dims and layer.v_head_dim not in capabilities.v_head_dims:
        yield Reason("v_head_dim", layer.v_head_dim, capabilities.v_head_dims)
    tp = request.parallel.tp
    if layer.num_heads % tp:
        yield Reason("heads", f"{layer.num_heads} query heads over {tp} ranks", "a tp that divides them")
    elif capabilities.max_heads is not None and request.heads_on_rank > capabilities.max_heads:
        yield Reason("heads", f"{request.heads_on_rank} query heads per rank", f"at most {capabilities.max_heads}")
    kv_heads = layer.num_kv_heads
    if layer.kind == "attention" and kv_heads and kv_heads % tp and tp % kv_heads:
        yield Reason("heads", f"{kv_heads} KV heads over {tp} ranks", "a tp that divides them or is a multiple")
    indexer = layer.indexer
    if indexer is None:
        return
    if indexer.width % capabilities.topk_multiple:
        yield Reason("topk_width", indexer.width, f"a multiple of {capabilities.topk_multiple}")
    if indexer.topk % indexer.pool:
        yield Reason("topk_width", f"{indexer.topk} keys pooled by {indexer.pool}", "whole pools")
    if indexer.pool > capabilities.max_index_pool:
        yield Reason("topk_width", f"{indexer.width} over keys pooled by {indexer.pool}", "one index key per token")


def _mask_reasons(capabilities: Capabilities, request: Request) -> Iterator[Reason]:
    layer = request.layer
    # What an indexer leaves is attended to as it is: the sparse call knows no window, chunk, softcap or future. A compressed
    # layer's window is itself a list of rows.
    is_sparse = layer.indexer is not None or layer.kind == "compressed"
    if layer.window is not None and layer.kind != "compressed" and (is_sparse or not capabilities.window):
        yield Reason("window", layer.window, "full attention only")
    if layer.chunk is not None and (is_sparse or not capabilities.chunk):
        yield Reason("chunk", layer.chunk, "unchunked attention only")
    if layer.softcap is not None and (is_sparse or not capabilities.softcap):
        yield Reason("softcap", layer.softcap, "no softcap")
    if layer.sink and not capabilities.sink:
        yield Reason("sink", "the layer has them", "layers without sinks")
    if not layer.causal and (is_sparse or not capabilities.non_causal):
        yield Reason("causal", False, "causal layers only")
    if layer.position_bias is not None and layer.position_bias not in capabilities.position_biases:
        yield Reason("position_bias", layer.position_bias, capabilities.position_biases or "layers without one")


def _mode_reasons(capabilities: Capabilities, request: Request) -> Iterator[Reason]:
    dcp = request.parallel.dcp
    if dcp > 1 and not (capabilities.dcp and capabilities.key_ranges):
        yield Reason("dcp", dcp, "one rank, since its calls honour no key ranges" if capabilities.dcp else "one rank")
    elif dcp > 1 and (request.layer.kind == "compressed" or request.tokens_per_row > 1):
        yield Reason("dcp", dcp, "one where tokens share cache rows")
    if request.block_size is not None and request.block_size % request.parallel.interleave:
        yield Reason("block_size", request.block_size, f"multiples of the interleave {request.parallel.interleave}")
    if request.need_lse and not capabilities.lse:
        yield Reason("lse", "needed", "no LSE")
    if request.deterministic and not capabilities.deterministic:
        yield Reason("deterministic", "not deterministic", "deterministic")
    if GRAPH_LEVELS.index(request.graphs) > GRAPH_LEVELS.index(capabilities.graphs):
        yield Reason("graphs", request.graphs, capabilities.graphs)
    if request.num_spec_tokens > capabilities.max_spec_tokens:
        yield Reason("spec_decode", request.num_spec_tokens, f"at most {capabilities.max_spec_tokens}")
