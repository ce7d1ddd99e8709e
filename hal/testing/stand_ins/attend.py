"""What every stand-in computes with: the float64 reference, over lists of keys that are fetched request by request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hal.testing.reference.softmax import attend_keys

Fetch = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def require(holds: object, message: str) -> None:
    """Raise RuntimeError, as the vendors' own checks raise it."""
    if not holds:
        raise RuntimeError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a vendor masks: keys to the left and to the right of a query's own, None for no bound; positions end together."""

    causal: bool
    left: int | None = None
    right: int | None = None

    def seen(self, position: int, num_keys: int) -> list[int]:
        """The keys that a query at a position sees."""
        right = 0 if self.causal else self.right
        first = 0 if self.left is None else max(0, position - self.left)
        stop = num_keys if right is None else min(num_keys, position + right + 1)
        return list(range(first, stop))


def attend_batch(
    q: torch.Tensor,
    starts: Sequence[int],
    fetch: Fetch,
    rule: Rule,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    value_width: int,
    empty_lse: float,
    empty_out: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [tokens, heads, value_width] and lse fp32 [tokens, heads]; rows of no request hold what was there before: NaN.

    A query without keys gives empty_out and empty_lse.
    """
    out = torch.full((*q.shape[:2], value_width), torch.nan, dtype=q.dtype)
    lse = torch.full(q.shape[:2], torch.nan, dtype=torch.float32)
    for request in range(len(starts) - 1):
        first, stop = starts[request], starts[request + 1]
        if first == stop:
            continue
        keys, values = fetch(request)
        for token in range(first, stop):
            seen = rule.seen(keys.shape[0] - (stop - token), keys.shape[0])
            if not seen:
                out[token], lse[token] = empty_out, empty_lse
                continue
            state = attend_keys(q[token], keys[seen], values[seen], softmax_scale=softmax_scale, softcap=softcap or None)
            out[token], lse[token] = state[0].to(out.dtype), state[1].float()
    return out, lse


def read_pages(pages: torch.Tensor, table: torch.Tensor, length: int, page_size: int) -> torch.Tensor:
    """The first `length` tokens [length, ...] of pages [pages, page_size, ...]; every page they lie on must exist."""
    needed = table[: -(-length // page_size)].tolist()
    require(len(needed) * page_size >= length, f"a table of {table.shape[0]} pages for {length} tokens")
    require(all(0 <= page < pages.shape[0] for page in needed), f"illegal memory access: pages {needed} of {pages.shape[0]}")
    return pages[needed].flatten(0, 1)[:length]


def require_int32(**tensors: torch.Tensor | None) -> None:
    """Raise RuntimeError unless this holds: index tensors are int32 and dense in their last dimension."""
    for name, tensor in tensors.items():
        if tensor is not None:
            require(tensor.dtype == torch.int32, f"{name} must have dtype int32, has {tensor.dtype}")
            require(tensor.dim() == 0 or tensor.shape[-1] < 2 or tensor.stride(-1) == 1, f"{name} must be dense at its end")


def require_dense_heads(**tensors: torch.Tensor | None) -> None:
    """Raise RuntimeError unless this holds: the head dimension has stride 1."""
    for name, tensor in tensors.items():
        require(tensor is None or tensor.stride(-1) == 1, f"{name} must have contiguous last dimension")


def require_dtype(allowed: Sequence[torch.dtype], **tensors: torch.Tensor | None) -> None:
    """Raise RuntimeError unless this holds: all tensors have one dtype, which is an allowed one."""
    for name, tensor in tensors.items():
        require(tensor is None or tensor.dtype in allowed, f"{name} is {tensor.dtype if tensor is not None else None}")
    require(len({tensor.dtype for tensor in tensors.values() if tensor is not None}) == 1, "inputs of different dtypes")
