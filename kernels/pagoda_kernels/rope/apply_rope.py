"""Rotary position embedding: half rotation (GPT-NeoX, Hugging Face) or interleaved (GPT-J).

Knows a table of cosines and sines. Knows nothing of how a model scales its frequencies.
"""

import torch

from pagoda_kernels.checks import (
    check_float,
    check_fp32,
    check_index,
    check_last_dim_dense,
    check_same,
    check_shape,
)


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate dims ``(i, i + R / 2)`` of every head by its position's angle; dims from R on pass.

    ``(a, b) -> (a cos - b sin, b cos + a sin)`` in fp32. The inputs are not changed.

    Args:
        q: ``[T, H, D]`` fp32, fp16 or bf16; any strides with a dense last dim.
        k: ``[T, HK, D]``, dtype of q.
        positions: ``[T]`` int32 or int64, each < max_position.
        cos_sin: ``[max_position, R]`` fp32 contiguous, R <= D even: cosines, then sines.
        interleaved: rotate dims ``(2 i, 2 i + 1)`` instead (GPT-J); the table stays as it is.

    Returns:
        New (q, k) with a dense last dim; on CPU they share memory.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(q, k, positions, cos_sin)
    if q.is_cuda:
        from pagoda_kernels.rope.triton import apply_rope as apply_rope_triton

        return apply_rope_triton(q, k, positions, cos_sin, interleaved=interleaved)
    angles = cos_sin.index_select(0, positions)
    both = turned(torch.cat((q, k), 1), angles.unsqueeze(1), interleaved)
    turned_q, turned_k = both.split_with_sizes((q.shape[1], k.shape[1]), 1)
    return turned_q, turned_k


def turned(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotate ``[T, H, D]`` by ``[T, 1, R]``, in few calls: they are what one token costs."""
    rot_dim, head_dim = angles.shape[-1], x.shape[-1]
    cos, sin = angles.chunk(2, -1)
    wide = (x if rot_dim == head_dim else x[..., :rot_dim]).float()
    if interleaved:
        first, second = wide[..., ::2], wide[..., 1::2]
    else:
        first, second = wide.chunk(2, -1)
    turned_first = (first * cos).addcmul_(second, sin, value=-1)
    turned_second = (second * cos).addcmul_(first, sin)
    if interleaved:
        joined = torch.stack((turned_first, turned_second), -1).flatten(-2)
    else:
        joined = torch.cat((turned_first, turned_second), -1)
    rounded = joined.to(x.dtype)
    return rounded if rot_dim == head_dim else torch.cat((rounded, x[..., rot_dim:]), -1)


def check_cos_sin(cos_sin: torch.Tensor, head_dim: int, device: torch.device) -> None:
    """Raise ValueError unless `cos_sin` is ``[max_position, R]`` fp32, R <= head_dim even."""
    check_shape("cos_sin", cos_sin, (None, None))
    check_fp32("cos_sin", cos_sin, device)
    if cos_sin.shape[1] % 2 or cos_sin.shape[1] > head_dim:
        raise ValueError(
            f"cos_sin: expected an even width <= head_dim {head_dim}, got {cos_sin.shape[1]}"
        )


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
) -> None:
    check_shape("q", q, (None, None, None))
    check_float("q", q)
    check_shape("k", k, (q.shape[0], None, q.shape[2]))
    check_same("k", k, "q", q)
    check_last_dim_dense("q", q)
    check_last_dim_dense("k", k)
    check_shape("positions", positions, (q.shape[0],))
    check_index("positions", positions, q.device)
    check_cos_sin(cos_sin, q.shape[2], q.device)
