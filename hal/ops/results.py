"""What an operator may return: dense tensors of the promised type that share no memory with its inputs."""

from __future__ import annotations

import torch


def log_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of an lse or a score beside activations of a type: fp32, and float64 beside float64."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def settle(result: torch.Tensor, dtype: torch.dtype, *inputs: torch.Tensor) -> torch.Tensor:
    """The result dense and in a type; a copy where a backend handed back one of the inputs."""
    if result.dtype is not dtype:
        result = result.to(dtype)
    if not result.is_contiguous():
        return result.contiguous()
    return result.clone() if any(_shares(result, tensor) for tensor in inputs) else result


def _shares(result: torch.Tensor, tensor: torch.Tensor) -> bool:
    return result is tensor or (result.numel() > 0 and result.data_ptr() == tensor.data_ptr())
