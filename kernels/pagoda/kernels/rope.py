"""Rotary position embedding in the half-rotation form of GPT-NeoX and Hugging Face.

Knows a table of cosines and sines. Knows nothing of how a model scales its frequencies.
"""

import torch

from pagoda.kernels.checks import (
    check_float,
    check_index,
    check_last_dim_dense,
    check_same,
    check_shape,
)


def apply_rope(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate dims ``(i, i + R / 2)`` of every head by its position's angle; dims from R on pass.

    ``(a, b) -> (a cos - b sin, b cos + a sin)`` in fp32. The inputs are not changed.

    Args:
        q: ``[T, H, D]`` fp32, fp16 or bf16; any strides with a dense last dim.
        k: ``[T, HK, D]``, dtype of q.
        positions: ``[T]`` int32 or int64, each < max_position.
        cos_sin: ``[max_position, R]`` fp32 contiguous, R <= D even: cosines, then sines.

    Returns:
        New (q, k) with a dense last dim; on CPU they share memory.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(q, k, positions, cos_sin)
    if q.is_cuda:
        from pagoda.kernels.triton_ops.rope import apply_rope as apply_rope_triton

        return apply_rope_triton(q, k, positions, cos_sin)
    cos, sin = cos_sin.index_select(0, positions)[:, None].chunk(2, -1)
    turned = _turned(torch.cat([q, k], 1), cos, sin)
    return turned[:, : q.shape[1]], turned[:, q.shape[1] :]


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    wide = x[..., : 2 * half].float()
    first, second = wide[..., :half], wide[..., half:]
    turned = wide.reshape(*wide.shape[:-1], 2, half) * cos[:, :, None]
    turned[..., 0, :].addcmul_(second, sin, value=-1)
    turned[..., 1, :].addcmul_(first, sin)
    rounded = turned.flatten(-2).to(x.dtype)
    return rounded if 2 * half == x.shape[-1] else torch.cat([rounded, x[..., 2 * half :]], -1)


def _check(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> None:
    check_shape("q", q, (None, None, None))
    check_float("q", q)
    check_shape("k", k, (q.shape[0], None, q.shape[2]))
    check_same("k", k, "q", q)
    check_last_dim_dense("q", q)
    check_last_dim_dense("k", k)
    check_shape("positions", positions, (q.shape[0],))
    check_index("positions", positions, q.device)
    check_shape("cos_sin", cos_sin, (None, None))
    if cos_sin.dtype != torch.float32 or cos_sin.device != q.device:
        raise ValueError(
            f"cos_sin: expected fp32 on {q.device}, got {cos_sin.dtype} on {cos_sin.device}"
        )
    if cos_sin.shape[1] % 2 or cos_sin.shape[1] > q.shape[2]:
        raise ValueError(
            f"cos_sin: expected an even width <= head_dim {q.shape[2]}, got {cos_sin.shape[1]}"
        )
