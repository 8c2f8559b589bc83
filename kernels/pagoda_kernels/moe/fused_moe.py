"""Mixture of SwiGLU experts: every token through its chosen experts, weighted and added up.

Knows the experts' weights. Knows nothing of how they were chosen (see `routing`).
"""

import torch

from pagoda_kernels.checks import check_float, check_last_dim_dense, check_same, check_shape
from pagoda_kernels.matmul.weights import FP8, FP8_BLOCK
from pagoda_kernels.moe import cpu
from pagoda_kernels.moe.expert_gate import ExpertGate


def fused_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    *,
    gate_up_scale: torch.Tensor | None = None,
    down_scale: torch.Tensor | None = None,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    gate: ExpertGate | None = None,
) -> torch.Tensor:
    """``sum_j weights[t, j] * down_e (silu(gate_e x_t) * up_e x_t)`` with ``e = experts[t, j]``.

    Either product may have a bias, and the gate another rule than SiLU. Accumulated in fp32; the
    activation and every expert's part are rounded to the dtype of x.
    Weights in e4m3 are widened on the way and scaled per 128x128 block.

    Args:
        x: ``[T, H]`` fp32, fp16 or bf16; rows dense.
        gate_up: ``[E, 2 * I, H]``, dtype of x or float8_e4m3fn, contiguous.
        down: ``[E, H, I]``, as `gate_up`.
        weights: ``[T, k]`` fp32, contiguous.
        experts: ``[T, k]`` int32, contiguous; negative adds nothing (the expert is elsewhere).
        gate_up_scale: ``[E, 2 * I / 128, H / 128]`` (rounded up) fp32 for e4m3, else None.
        down_scale: ``[E, H / 128, I / 128]`` (rounded up) fp32 for e4m3, else None.
        gate_up_bias: ``[E, 2 * I]``, dtype of x, contiguous; None: there is none.
        down_bias: ``[E, H]``, as `gate_up_bias`.
        gate: None: ``silu(gate) * up``.

    Returns:
        New contiguous ``[T, H]``.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(x, gate_up, down, weights, experts, gate_up_scale, down_scale)
    for name, bias, width in (
        ("gate_up_bias", gate_up_bias, gate_up.shape[1]),
        ("down_bias", down_bias, x.shape[1]),
    ):
        if bias is not None:
            _check_bias(name, bias, x, (len(gate_up), width))
    if x.is_cuda:
        from pagoda_kernels.moe.triton.fused_moe import fused_moe as fused_moe_triton

        return fused_moe_triton(
            x, gate_up, down, weights, experts, gate_up_scale, down_scale,
            gate_up_bias=gate_up_bias, down_bias=down_bias, gate=gate,
        )  # fmt: skip
    return cpu.fused_moe(
        x, gate_up, down, weights, experts, gate_up_scale, down_scale,
        gate_up_bias=gate_up_bias, down_bias=down_bias, gate=gate,
    )  # fmt: skip


def _check(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up_scale: torch.Tensor | None,
    down_scale: torch.Tensor | None,
) -> None:
    check_shape("x", x, (None, None))
    check_float("x", x)
    check_last_dim_dense("x", x)
    num_tokens, hidden = x.shape
    check_shape("gate_up", gate_up, (None, None, hidden))
    num_experts, width = gate_up.shape[:2]
    if width % 2:
        raise ValueError(f"gate_up: expected an even width, got {width}")
    check_shape("down", down, (num_experts, hidden, width // 2))
    check_shape("weights", weights, (num_tokens, None))
    check_shape("experts", experts, weights.shape)
    for name, tensor, dtype in (
        ("weights", weights, torch.float32),
        ("experts", experts, torch.int32),
    ):
        if tensor.dtype != dtype or tensor.device != x.device or not tensor.is_contiguous():
            raise ValueError(
                f"{name}: expected contiguous {dtype} on {x.device}, "
                f"got {tensor.dtype} on {tensor.device}"
            )
    for name, tensor, scale in (
        ("gate_up", gate_up, gate_up_scale),
        ("down", down, down_scale),
    ):
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: expected contiguous, got strides {tensor.stride()}")
        if tensor.dtype != FP8:
            check_same(name, tensor, "x", x)
        if (scale is None) != (tensor.dtype != FP8):
            got = "None" if scale is None else "a tensor"
            raise ValueError(f"{name}_scale: expected a tensor for e4m3 and None else, got {got}")
        if scale is not None:
            blocks = [-(-size // FP8_BLOCK) for size in tensor.shape[1:]]
            check_shape(f"{name}_scale", scale, (num_experts, *blocks))
            if scale.dtype != torch.float32 or not scale.is_contiguous():
                raise ValueError(f"{name}_scale: expected contiguous fp32, got {scale.dtype}")


def _check_bias(name: str, bias: torch.Tensor, x: torch.Tensor, shape: tuple[int, int]) -> None:
    check_shape(name, bias, shape)
    check_same(name, bias, "x", x)
    if not bias.is_contiguous():
        raise ValueError(f"{name}: expected contiguous, got strides {bias.stride()}")
