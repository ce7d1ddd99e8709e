"""Everything an engine must know before it allocates: who serves each layer, the caches, the buffers, the sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import lcm
from typing import TYPE_CHECKING, Any

from hal.config import LayerShape, ModelShape
from hal.config.dtypes import model_dtype_name

from .building.regions import list_regions, place_regions
from .cache import CacheKey
from .cache_parts import PARTS, CachePart, check_entry_sources, list_parts
from .capabilities import Graphs
from .capacity import count_blocks, count_tokens
from .dcp.buffers import rank_buffers
from .detection import detect
from .device import Device
from .environment import warn_of_mistakes
from .errors import BackendError, InputError
from .layouts import Layout, block_table_width
from .limits import Limits, check_positive_int, check_whole
from .parallel import Parallel
from .quiet import describe_error
from .registry import find_backend, known_libraries
from .request import Request
from .selection import Selection, choose
from .software import Software
from .warmup import list_keys
from .workspace import Buffer, chosen_rows, plan_buffers

if TYPE_CHECKING:
    import torch

    from .attention import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """One cache tensor an engine must provide: [pages, rows_per_page, layout.width] in layout.dtype, zero-filled.

    part is "kv", "entries", "index", "state" or "index_state"; key is what plan.bind takes it under: the layer id for its
    KV, (layer id, part) for every other. A page holds block_size tokens in every cache, tokens_per_row of them in one row,
    or rows of its last last_rows tokens alone: that of a token is its offset in the page modulo rows_per_page.
    Pages lie page_bytes apart, which may be more than their rows take, or further: allocate() makes such a tensor. A layout
    with scale_shapes needs fp32 scales of one of these shapes beside it.
    """

    layer_id: int
    part: str
    group: int
    layout: Layout
    block_size: int
    tokens_per_row: int = 1
    last_rows: int | None = None

    @property
    def key(self) -> CacheKey:
        """The tensor's name in plan.bind."""
        return self.layer_id if self.part == "kv" else (self.layer_id, self.part)

    @property
    def rows_per_page(self) -> int:
        """Rows of one page."""
        return count_rows(self)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, padding included."""
        return self.layout.page_bytes(self.rows_per_page)

    @property
    def scale_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the fp32 scales kept beside the tensor may have; empty where the layout keeps none there."""
        return self.layout.scale_shapes

    def shape(self, num_blocks: int) -> tuple[int, int, int]:
        """The tensor's shape with that many pages."""
        return num_blocks, self.rows_per_page, self.layout.width

    def allocate(self, num_blocks: int, device: str | torch.device = "cpu") -> torch.Tensor:
        """A zero-filled tensor of the spec with that many pages, as far apart as their padding asks for."""
        from .records import allocate_pages

        return allocate_pages(self.layout, num_blocks, self.rows_per_page, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers whose pages have one size and one lifetime, so that one block table serves them all.

    block_size: tokens of a page, of which tokens_per_row share a row, or of which only the last last_rows have one.
    window: how many keys, its own included, a token sees at most in any layer that reads the group; None where it may see all.
    """

    group_id: int
    part: str
    layer_ids: tuple[int, ...]
    layout: Layout
    block_size: int
    window: int | None
    tokens_per_row: int = 1
    last_rows: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over the group's layers: its part of a page, rounded up where tokens share rows."""
        return -(-self.layout.bytes_per_token * count_rows(self) * len(self.layer_ids) // self.block_size)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over the group's layers."""
        return self.layout.page_bytes(count_rows(self)) * len(self.layer_ids)


def count_rows(cache: CacheSpec | CacheGroup) -> int:
    """Rows of one page: a row per token, or per tokens_per_row tokens, or for the last tokens of a page alone."""
    rows = cache.block_size // cache.tokens_per_row
    return rows if cache.last_rows is None else min(rows, cache.last_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model on a device, decided and measured; open() or bind() runs it."""

    shape: ModelShape
    device: Device
    limits: Limits
    parallel: Parallel
    dtype: str
    block_size: int
    num_spec_tokens: int
    need_lse: bool
    requests: tuple[Request | None, ...] = field(repr=False)
    selections: tuple[Selection | None, ...]
    groups: tuple[CacheGroup, ...]
    buffers: tuple[Buffer, ...]

    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """One spec per cache tensor, by layer."""
        specs = [
            CacheSpec(
                layer_id=layer_id,
                part=group.part,
                group=group.group_id,
                layout=group.layout,
                block_size=group.block_size,
                tokens_per_row=group.tokens_per_row,
                last_rows=group.last_rows,
            )
            for group in self.groups
            for layer_id in group.layer_ids
        ]
        return tuple(sorted(specs, key=lambda spec: (spec.layer_id, PARTS.index(spec.part))))

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all caches of one rank, index keys, compressed entries and compressor states included.

        Windows count in full, those of the states too; page_bytes is exact where tokens share rows.
        """
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return sum(group.page_bytes for group in self.groups)

    @property
    def block_table_width(self) -> int:
        """Columns of the block tables that the metadata keeps."""
        return block_table_width(self.limits.max_model_len, self.block_size, self.parallel.dcp)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of every buffer beside the caches."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def tokens_per_page(self) -> int:
        """Tokens of one column of a block table: a page of every decode-context rank."""
        return self.block_size * self.parallel.dcp

    def max_tokens(self, memory_bytes: int) -> int:
        """Tokens that hal's own pools hold in some memory beside the workspace, in whole pages, over all requests together.

        One pool for all groups: a page counts every layer in full, and none is freed before every layer is done with it.
        memory_bytes is one rank's; the tokens are those that the ranks of a DCP group hold together, each with as much.
        The lengths that a model's windows would allow are shape.max_tokens.
        """
        check_whole("memory_bytes", memory_bytes, "a whole number of bytes")
        room = memory_bytes - self.workspace_bytes
        if not self.page_bytes:
            return 0
        return max(0, room // self.page_bytes) * self.tokens_per_page

    def max_tokens_per_group(self, memory_bytes: int) -> int:
        """The same with a pool for each group, as large as blocks_per_group() makes them and freed behind windows.

        No more than max_num_seqs requests of max_model_len, since window groups alone would set no bound.
        """
        check_whole("memory_bytes", memory_bytes, "a whole number of bytes")
        return count_tokens(self, memory_bytes - self.workspace_bytes) if self.page_bytes else 0

    def blocks_per_group(self, num_tokens: int | None = None) -> tuple[int, ...]:
        """Pages of each group's own pool, for open(), that always suffice for so many tokens over all requests.

        num_tokens: in whole pages; max_num_seqs requests of max_model_len each by default. Where a window limits what is
        read, max_num_seqs windows and one step's max_num_batched_tokens are enough, provided that pages behind a window are
        freed before each step.
        """
        if num_tokens is not None:
            check_positive_int("num_tokens", num_tokens)
        pages = self.default_num_blocks() if num_tokens is None else -(-num_tokens // self.tokens_per_page)
        return tuple(max(1, count_blocks(self, group, pages)) for group in self.groups)

    def default_num_blocks(self) -> int:
        """Pages for max_num_seqs requests of max_model_len each."""
        pages = -(-self.limits.max_model_len // self.tokens_per_page)
        return pages * self.limits.max_num_seqs

    def warmup_keys(self) -> tuple[Hashable, ...]:
        """Keys of every launch that compiles; empty where none does."""
        return list_keys(self)

    def explain(self) -> str:
        """The plan in a few lines for people."""
        from .explain import explain_plan

        return explain_plan(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data, the same in every run."""
        return {
            "model_type": self.shape.model_type,
            "device": self.device.target,
            "dtype": self.dtype,
            "limits": asdict(self.limits),
            "parallel": asdict(self.parallel),
            "block_size": self.block_size,
            "bytes_per_token": self.bytes_per_token,
            "page_bytes": self.page_bytes,
            "workspace_bytes": self.workspace_bytes,
            "groups": [asdict(group) for group in self.groups],
            "buffers": [{**asdict(buffer), "nbytes": buffer.nbytes} for buffer in self.buffers],
            "layers": [_selection_dict(selection) for selection in self.selections],
        }

    def open(self, num_blocks: int | Sequence[int] | Mapping[int, int] | None = None, group: Any = None) -> Attention:
        """An Attention on caches of hal's own, zero-filled, of num_blocks pages (default_num_blocks by default).

        One number: one pool and one page numbering for all cache groups. A number per group (in order, or by group id): a pool
        and a block table for each. Scales that live outside a cache are ones until attention.set_scale() changes them.
        group: the process group of the plan's DCP ranks, in rank order, where dcp is above 1: all of them open at the same
        time, build the same batches and make the same calls. InputError where the group and the plan do not fit,
        CapacityError where the caches do not fit in the device's memory, both before anything is allocated.
        """
        from .opening import open_attention

        return open_attention(self, num_blocks, group)

    def bind(self, caches: Mapping[CacheKey, torch.Tensor | tuple[torch.Tensor, torch.Tensor]], group: Any = None) -> Attention:
        """An Attention on the engine's own tensors, keyed and shaped as cache_specs() says; LayoutError where one is not.

        A cache whose spec has scale_shapes is given as (storage, scale): the fp32 scales stay the engine's tensor too.
        All of them with as many pages: one page numbering for all groups, or a block table for each. Page counts that differ
        between groups: a table for each.
        """
        from .opening import bind_attention

        return bind_attention(self, caches, group)


def plan(
    shape: ModelShape,
    device: Device | str | None = None,
    *,
    limits: Limits | None = None,
    parallel: Parallel | None = None,
    dtype: object = None,
    kv_layout: str = "auto",
    backend: str | None = None,
    software: Software | None = None,
    graphs: Graphs = "never",
    num_spec_tokens: int = 0,
    need_lse: bool = False,
) -> Plan:
    """The plan of a model on a device: this machine's best one by default; a target's name means this machine's where it has one.

    dtype is the model's unless given. kv_layout goes to every layer whose kind can have it; the others of a model that has any
    such layer take "auto". Quantised index keys go with quantised latents where the backend has them. software None takes
    what is installed for a present device, and every library for another. NoBackend where a layer cannot be served; no tensor
    is made.
    """
    _check_types(shape, limits, parallel, software, kv_layout, backend)
    limits = _default_limits(shape) if limits is None else limits
    parallel = Parallel() if parallel is None else parallel
    check_entry_sources(shape)
    warn_of_mistakes()
    device = _resolve_device(device)
    dtype = model_dtype_name(dtype if dtype is not None else shape.dtype or "bfloat16")
    if software is None and device.present:
        software = installed()

    wishes = (limits.block_size, parallel, software, graphs, num_spec_tokens, need_lse)
    requests = [
        None if layer.kind in ("none", "cross") else Request(layer, device, dtype, shape.layout_of(layer, kv_layout), *wishes)
        for layer in shape.layers
    ]
    selections = _select(requests, backend)
    sizes = {selection.block_size for selection in selections if selection is not None}
    block_size = lcm(*sizes) if sizes else limits.block_size or 16
    requests = [None if request is None else replace(request, block_size=block_size) for request in requests]
    if len(sizes) > 1:
        # One page size for all layers: the least that is a multiple of each backend's own, if every one takes it.
        selections = _select(requests, backend)
    groups = _group_layers(shape.layers, selections, dtype, parallel, block_size, device.fp8, num_spec_tokens)
    gathered = "float32" if any(group.layout.is_quantised for group in groups) else dtype
    return Plan(
        shape=shape,
        device=device,
        limits=limits,
        parallel=parallel,
        dtype=dtype,
        block_size=block_size,
        num_spec_tokens=num_spec_tokens,
        need_lse=need_lse,
        requests=tuple(requests),
        selections=tuple(selections),
        groups=groups,
        buffers=(
            _step_arrays(shape, limits, parallel, block_size, groups),
            *plan_buffers(shape, limits, parallel, dtype, block_size, gathered),
            *chosen_rows(shape, limits, groups),
            *rank_buffers(shape, limits, parallel, dtype),
            *_workspaces(selections, limits),
            *_scratch(requests, selections, limits),
        ),
    )


def _check_types(shape: object, limits: object, parallel: object, software: object, kv_layout: object, backend: object) -> None:
    """Nothing, or InputError for what cannot be meant: above all a config in the place of what is read from it."""
    if not isinstance(shape, ModelShape):
        raise InputError(f"shape is a {type(shape).__name__}; expected the ModelShape that hal.config.read_shape(source) gives")
    for name, value, expected in (
        ("limits", limits, Limits),
        ("parallel", parallel, Parallel),
        ("software", software, Software),
        ("kv_layout", kv_layout, str),
        ("backend", backend, str),
    ):
        if value is not None and not isinstance(value, expected):
            raise InputError(f"{name} is {value!r}; expected a {expected.__name__}")


def _select(requests: list[Request | None], backend: str | None) -> list[Selection | None]:
    return [None if request is None else choose(request, backend) for request in requests]


def _step_arrays(
    shape: ModelShape, limits: Limits, parallel: Parallel, block_size: int, groups: tuple[CacheGroup, ...]
) -> Buffer:
    """The one block of a builder's metadata: lengths, positions, slots, and the block tables of every cache group."""
    _, nbytes = place_regions(list_regions(shape, limits, parallel, block_size, groups))
    return Buffer(name="step arrays", shape=(nbytes,), dtype="uint8")


def _workspaces(selections: list[Selection | None], limits: Limits) -> tuple[Buffer, ...]:
    """What the plan's backends fill per step, named after them; BackendError where one cannot say."""
    names = sorted({name for selection in selections if selection for name in selection.providers.values()})
    return tuple(buffer for name in names for buffer in _ask_buffers(name, find_backend(name).list_workspaces, limits))


def _ask_buffers(name: str, hook: Callable[..., Iterable[Buffer]], *args: object) -> tuple[Buffer, ...]:
    """A backend's own buffers, named after it; BackendError, chained, where it cannot say."""
    try:
        return tuple(replace(buffer, name=f"{name}: {buffer.name}") for buffer in hook(*args))
    except Exception as error:
        raise BackendError(f"{name} does not say which buffers it needs: {describe_error(error)}") from error


def _scratch(requests: list[Request | None], selections: list[Selection | None], limits: Limits) -> tuple[Buffer, ...]:
    """What calls make and give back: the largest of each backend's, since one layer runs at a time."""
    largest: dict[str, Buffer] = {}
    for request, selection in zip(requests, selections, strict=True):
        if request is None or selection is None:
            continue
        served: dict[str, set[str]] = {}
        for call, name in selection.providers.items():
            served.setdefault(name, set()).add(call.partition(".")[0])
        for name, calls in served.items():
            for found in _ask_buffers(name, find_backend(name).list_scratch, request, limits, calls):
                largest[found.name] = max(largest.get(found.name, found), found, key=lambda each: each.nbytes)
    return tuple(largest[name] for name in sorted(largest))


def installed() -> Software:
    """The vendor libraries of this machine that any registered backend can use, from distribution metadata alone."""
    from .vendor.presence import find_libraries

    return find_libraries(known_libraries().values())


def _resolve_device(device: Device | str | None) -> Device:
    if device is None:
        return detect()[0]
    if isinstance(device, Device):
        return device
    if not isinstance(device, str):
        raise InputError(f"device is {device!r}; expected a Device or a target such as 'cuda:sm_90' or 'cpu'")
    wanted = Device.from_arch(device)
    return next((found for found in detect() if found.target == wanted.target), wanted)


def _default_limits(shape: ModelShape) -> Limits:
    longest = min(shape.max_position_embeddings or 4096, 8192)
    return Limits(max_model_len=longest, max_num_seqs=8, max_num_batched_tokens=2048)


def _group_layers(
    layers: tuple[LayerShape, ...],
    selections: list[Selection | None],
    dtype: str,
    parallel: Parallel,
    block_size: int,
    fp8: str | None,
    num_spec_tokens: int,
) -> tuple[CacheGroup, ...]:
    windows = _read_windows(layers)
    members: dict[CachePart, list[int]] = {}
    for layer, selection in zip(layers, selections, strict=True):
        if selection is not None:
            for part in list_parts(layer, selection, dtype, parallel, windows.get(layer.layer_id), fp8, num_spec_tokens):
                members.setdefault(part, []).append(layer.layer_id)
    ordered = sorted(members.items(), key=lambda item: (PARTS.index(item[0].part), item[1][0]))
    return tuple(
        CacheGroup(
            group_id=i,
            part=part.part,
            layer_ids=tuple(ids),
            layout=part.layout,
            block_size=block_size,
            window=part.window,
            tokens_per_row=part.tokens_per_row,
            last_rows=part.last_rows,
        )
        for i, (part, ids) in enumerate(ordered)
    )


def _read_windows(layers: tuple[LayerShape, ...]) -> dict[int, int | None]:
    """By layer that owns KV: the widest window of those that read it; None where one of them may read any key."""
    windows: dict[int, int | None] = {}
    for layer in layers:
        known = windows.get(layer.kv_source, 0)
        windows[layer.kv_source] = None if layer.window is None or known is None else max(layer.window, known)
    return windows


def _selection_dict(selection: Selection | None) -> dict[str, Any] | None:
    if selection is None:
        return None
    return {
        "backend": selection.backend,
        "providers": dict(selection.providers),
        "kv_layout": selection.kv_layout,
        "index_layout": selection.index_layout,
        "source": selection.source,
        "rejected": {name: [asdict(reason) for reason in reasons] for name, reasons in selection.rejected.items()},
    }
