"""Launches that join results: parts of a call, two states, a sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hal.common.contract.dense import dense_rows
from hal.common.contract.errors import LayoutError

from .launch import Launch
from .operands import check_state, dense_sink

if TYPE_CHECKING:
    import torch

_ELEMENTS = 2048


def join_launch(parts: Any, parts_lse: Any, out: Any, lse: Any, sink: Any = None) -> Launch:
    """parts fp32 [parts, tokens, heads, width] and their lse [parts, tokens, heads], joined into out and lse (or None).

    sink: fp32 [heads] that out is to have in its denominators, or None.
    """
    num_parts, tokens, heads, width = parts.shape
    return Launch(
        kernel="merge:join_parts",
        grid=(tokens * heads,),
        tensors={"parts": parts, "out": out},
        tables={
            "lse": parts_lse,
            "sink": parts_lse if sink is None else sink,
            "out_lse": parts_lse if lse is None else lse,
        },
        strides={
            "part_token": parts.stride(1),
            "part_head": parts.stride(2),
            "lse_token": parts_lse.stride(1),
            "out_token": out.stride(0),
            "out_head": out.stride(1),
            "out_lse_token": heads if lse is None else lse.stride(0),
        },
        numbers={"part_part": parts.stride(0), "lse_part": parts_lse.stride(0), "num_parts": num_parts, "num_heads": heads},
        constants={"WIDTH": width, "HAS_LSE": lse is not None, "HAS_SINK": sink is not None, "BLOCK": _columns(width)},
        num_warps=4,
    )


def merge_launch(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, out: Any, lse: Any) -> Launch:
    """Two states [tokens, heads, width], joined into dense out and lse."""
    tokens, heads, width = out_a.shape
    block = _columns(width)
    rows = max(1, _ELEMENTS // block)
    strides: dict[str, int] = {}
    for name, state, log in (("a", out_a, lse_a), ("b", out_b, lse_b)):
        strides |= {f"{name}_token": state.stride(0), f"{name}_head": state.stride(1)}
        strides |= {f"lse_{name}_token": log.stride(0), f"lse_{name}_head": log.stride(1)}
    return Launch(
        kernel="merge:merge_pair",
        grid=(-(-tokens * heads // rows),),
        tensors={"out_a": out_a, "out_b": out_b, "out": out},
        tables={"lse_a": lse_a, "lse_b": lse_b, "lse": lse},
        strides=strides,
        numbers={"num_rows": tokens * heads, "num_heads": heads},
        constants={"WIDTH": width, "ROWS": rows, "BLOCK": block},
        num_warps=4,
    )


def sink_launch(out: Any, lse: Any, sink: Any, result: Any) -> Launch:
    """out [tokens, heads, width] scaled into a dense result by the share of the denominator that is not the sink's."""
    tokens, heads, width = out.shape
    block = _columns(width)
    rows = max(1, _ELEMENTS // block)
    return Launch(
        kernel="merge:scale_by_sink",
        grid=(-(-tokens * heads // rows),),
        tensors={"out": out, "result": result},
        tables={"lse": lse, "sink": sink},
        strides={
            "out_token": out.stride(0),
            "out_head": out.stride(1),
            "lse_token": lse.stride(0),
            "lse_head": lse.stride(1),
        },
        numbers={"num_rows": tokens * heads, "num_heads": heads},
        constants={"WIDTH": width, "ROWS": rows, "BLOCK": block},
        num_warps=4,
    )


def merge_states(
    run: Callable[[Launch], None], out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result over both key sets [tokens, heads, width] and its lse fp32 [tokens, heads], in new tensors."""
    import torch

    check_state(out_a, lse_a)
    check_state(out_b, lse_b)
    if out_a.shape != out_b.shape:
        raise LayoutError(f"results {list(out_a.shape)} and {list(out_b.shape)} are not of the same queries; both need one shape")
    out_a, out_b = dense_rows(out_a), dense_rows(out_b)
    out = out_a.new_empty(out_a.shape)
    lse = out_a.new_empty(out_a.shape[:2], dtype=torch.float32)
    run(merge_launch(out_a, lse_a, out_b, lse_b, out, lse))
    return out, lse


def apply_sink(run: Callable[[Launch], None], out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """out with its sink, in a new tensor; an empty row stays 0."""
    check_state(out, lse)
    sink = dense_sink(sink, lse.shape[1])
    out = dense_rows(out)
    result = out.new_empty(out.shape)
    run(sink_launch(out, lse, sink, result))
    return result


def _columns(width: int) -> int:
    return 1 << (max(width, 1) - 1).bit_length()
