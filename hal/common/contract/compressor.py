"""What a layer's own compressor made of a step's tokens, what turns a group of them into one entry, and where it is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import LayoutError

if TYPE_CHECKING:
    import torch

    from .cache import KVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """A compressor's products of a step and its weights; an entry is `width` elements wide.

    kv, score: [tokens, groups * width], groups 2 where groups overlap (first what a token adds to the entry after its own,
    then what it adds to its own), else 1. position_bias: [ratio, groups * width], added to the scores by position.
    norm_weight: [width], None for entries that are not normalised. cos, sin: [tokens, rope / 2], the rotation of adjacent
    pairs of an entry's last rope lanes at the position where each token's group starts, position // ratio * ratio; None for
    entries that are not rotated.
    """

    kv: torch.Tensor
    score: torch.Tensor
    position_bias: torch.Tensor
    norm_weight: torch.Tensor | None = None
    eps: float = 1e-6
    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None

    def check(
        self, name: str, num_tokens: int, ratio: int, groups: int, width: int, rope: int | None, device: torch.device
    ) -> None:
        """Raise LayoutError for a field of another shape or device or no floating type; rope None: any even rotation."""
        import torch

        from .tensor_faults import FLOATS, find_fault

        if (self.cos is None) != (self.sin is None):
            raise LayoutError(f"{name} has one of cos and sin; an entry is rotated by both or not at all")
        pair = self.cos.shape[-1] if isinstance(self.cos, torch.Tensor) and self.cos.dim() else 0
        if 2 * pair > width or (rope is not None and 2 * pair != rope):
            raise LayoutError(f"{name} rotates {2 * pair} lanes of an entry; expected {width if rope is None else rope}")
        if self.norm_weight is not None and not (isinstance(self.eps, (int, float)) and self.eps >= 0):
            raise LayoutError(f"{name}.eps is {self.eps!r}; expected a number of at least 0 beside norm_weight")
        wide = (num_tokens, groups * width)
        for field, tensor, shape in (
            ("kv", self.kv, wide),
            ("score", self.score, wide),
            ("position_bias", self.position_bias, (ratio, groups * width)),
            ("norm_weight", self.norm_weight, (width,)),
            ("cos", self.cos, (num_tokens, pair)),
            ("sin", self.sin, (num_tokens, pair)),
        ):
            if tensor is None and field in ("norm_weight", "cos", "sin"):
                continue
            if fault := find_fault(f"{name}.{field}", tensor, FLOATS, shape, torch.device(device.type)):
                raise LayoutError(fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedBatch:
    """Where a step's tokens leave what is compressed: slots int64 [tokens] of their states and of the entries they close.

    query_start_loc int32 [requests + 1], req_id int32 [tokens] and positions int64 [tokens] say which states are of the step
    itself; block_table int32 [requests, pages] is that of the states, whose pages hold the earlier ones. Slot -1: nowhere.
    """

    state_slots: torch.Tensor
    entry_slots: torch.Tensor
    query_start_loc: torch.Tensor
    req_id: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor


def check_states(compressor: Compressor, states: KVCache, entries: KVCache, batch: CompressedBatch, ratio: int) -> int:
    """How many groups an entry is made of; LayoutError where states, entries and the compressor do not fit each other."""
    wide, width = states.layout.widths[0], entries.layout.widths[0]
    groups = wide // max(1, width)
    if states.layout.name != "state" or groups not in (1, 2) or groups * width != wide:
        raise LayoutError(
            f"states of layout {states.layout.name!r} hold {wide} values per token; entries of {width} need a 'state' layout of "
            f"{width}, or of {2 * width} where groups overlap"
        )
    page, span = entries.block_size * ratio, groups * ratio
    if not min(page, span) <= states.block_size <= page:
        raise LayoutError(
            f"states keep {states.block_size} rows of a page of {page} tokens; an entry of {span} tokens needs {min(page, span)}"
        )
    tokens = compressor.kv.shape[0]
    compressor.check("compressor", tokens, ratio, groups, width, None, states.storage.device)
    counts = [tensor.shape[0] for tensor in (batch.state_slots, batch.entry_slots, batch.req_id, batch.positions)]
    if set(counts) != {tokens}:
        raise LayoutError(f"slots, requests and positions of {counts} tokens; the compressor has {tokens}")
    return groups
