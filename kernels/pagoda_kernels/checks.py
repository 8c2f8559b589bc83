"""Argument checks shared by the operators. Every message says what was expected and what came.

Knows shapes, dtypes and devices. Knows nothing of what an operator computes.
"""

from collections.abc import Sequence

import torch

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_shape(name: str, tensor: torch.Tensor, expected: Sequence[int | None]) -> None:
    """Raise ValueError unless `tensor` has the expected shape; None accepts any size."""
    shape = tensor.shape
    if shape == expected:
        return  # what nearly always holds, asked quickly: a step of one token asks a hundred times
    if len(shape) == len(expected):
        for got, want in zip(shape, expected, strict=True):
            if want is not None and got != want:
                break
        else:
            return
    wanted = ", ".join("any" if want is None else str(want) for want in expected)
    raise ValueError(f"{name}: expected shape [{wanted}], got {list(shape)}")


def check_same(name: str, tensor: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    """Raise ValueError unless `tensor` has the dtype and device of `like`."""
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise ValueError(
            f"{name}: expected {like.dtype} on {like.device} as {like_name}, "
            f"got {tensor.dtype} on {tensor.device}"
        )


def checked_out(
    out: torch.Tensor | None, shape: Sequence[int], like_name: str, like: torch.Tensor
) -> torch.Tensor:
    """`out` after its checks, or a new one of this shape with the dtype and device of `like`."""
    if out is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    check_shape("out", out, shape)
    check_same("out", out, like_name, like)
    check_last_dim_dense("out", out)
    return out


def check_float(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless `tensor` is fp32, fp16 or bf16."""
    if tensor.dtype not in FLOAT_DTYPES:
        raise ValueError(f"{name}: expected fp32, fp16 or bf16, got {tensor.dtype}")


def check_fp32(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raise ValueError unless `tensor` holds fp32 on `device`."""
    if tensor.dtype != torch.float32 or tensor.device != device:
        raise ValueError(
            f"{name}: expected fp32 on {device}, got {tensor.dtype} on {tensor.device}"
        )


def check_scale(scale: float) -> None:
    """Raise ValueError unless `scale` keeps the order of scores, on which online softmax relies."""
    if not scale > 0:
        raise ValueError(f"scale: expected > 0, got {scale}")


def check_index(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raise ValueError unless `tensor` holds int32 or int64 on `device`."""
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.device != device:
        raise ValueError(
            f"{name}: expected int32 or int64 on {device}, got {tensor.dtype} on {tensor.device}"
        )


def check_last_dim_dense(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless neighbours along the last dim are neighbours in memory."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(f"{name}: expected stride 1 in the last dim, got {tensor.stride(-1)}")
