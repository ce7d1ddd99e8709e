"""Everything an engine must know before it allocates, as a value: who serves each layer, the caches, the buffers, the sizes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hal.config import ModelShape

from .backend import Backend
from .buffer import Buffer
from .cache import CacheKey
from .cache_groups import PARTS, CacheGroup, CacheSpec
from .capacity import count_blocks, count_tokens
from .device import Device
from .extras import naming_extra
from .launches import list_keys
from .layouts import block_table_width
from .limits import Limits, check_positive_int, check_whole
from .parallel import Parallel
from .plan_text import describe_buffers, describe_caches, describe_layers, format_bytes
from .request import Request
from .selection import Selection

if TYPE_CHECKING:
    import torch

    from hal.common.running.opening import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model on a device, decided and measured; open() or bind() runs it.

    backends: the classes that its selections name, as they were registered when it was made.
    """

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
    backends: Mapping[str, type[Backend]] = field(repr=False, compare=False)

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
        if not self.page_bytes:
            return 0
        room = memory_bytes - self.workspace_bytes
        return count_tokens(self.groups, self.limits, self.tokens_per_page, room, self.default_num_blocks())

    def blocks_per_group(self, num_tokens: int | None = None) -> tuple[int, ...]:
        """Pages of each group's own pool, for open(), that always suffice for so many tokens over all requests.

        num_tokens: in whole pages; max_num_seqs requests of max_model_len each by default. Where a window limits what is
        read, max_num_seqs windows and one step's max_num_batched_tokens are enough, provided that pages behind a window are
        freed before each step.
        """
        if num_tokens is not None:
            check_positive_int("num_tokens", num_tokens)
        pages = self.default_num_blocks() if num_tokens is None else -(-num_tokens // self.tokens_per_page)
        return tuple(max(1, count_blocks(group, self.limits, self.tokens_per_page, pages)) for group in self.groups)

    def default_num_blocks(self) -> int:
        """Pages for max_num_seqs requests of max_model_len each."""
        pages = -(-self.limits.max_model_len // self.tokens_per_page)
        return pages * self.limits.max_num_seqs

    def warmup_keys(self) -> tuple[Hashable, ...]:
        """Keys of every launch that compiles; empty where none does."""
        return list_keys(self.requests, self.selections, self.backends, self.device.target)

    def explain(self) -> str:
        """The plan in a few lines for people."""
        ranks = f" on each of {self.parallel.dcp} ranks" if self.parallel.dcp > 1 else ""
        title = f"{self.shape.model_type} on {self.device.target} in {self.dtype}, pages of {self.block_size} tokens{ranks}"
        sizes = f"  {format_bytes(self.bytes_per_token)} per token, {format_bytes(self.page_bytes)} per page"
        buffers = describe_buffers(self.buffers, self.workspace_bytes)
        return "\n".join([title, *describe_layers(self.selections), *describe_caches(self.groups), sizes, *buffers])

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
        with naming_extra("Plan.open"):
            from hal.common.running.opening import open_attention

        return open_attention(self, num_blocks, group)

    def bind(self, caches: Mapping[CacheKey, torch.Tensor | tuple[torch.Tensor, torch.Tensor]], group: Any = None) -> Attention:
        """An Attention on the engine's own tensors, keyed and shaped as cache_specs() says; LayoutError where one is not.

        A cache whose spec has scale_shapes is given as (storage, scale): the fp32 scales stay the engine's tensor too.
        All of them with as many pages: one page numbering for all groups, or a block table for each. Page counts that differ
        between groups: a table for each.
        """
        with naming_extra("Plan.bind"):
            from hal.common.running.opening import bind_attention

        return bind_attention(self, caches, group)


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
