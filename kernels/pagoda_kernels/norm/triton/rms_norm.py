"""RMS norm of rows, alone or after adding the residual. Reference: `reference.rms_norm`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

TILE_ELEMENTS = 2048
"""Elements one program works on at least, so that norms of single heads share programs."""


@triton.jit
def weighted_norm(x, weight, width, eps, dtype: tl.constexpr):
    """``round(x * rsqrt(mean(x^2) + eps)) * weight``, rounded again: [R, N] fp32, [1, N] fp32."""
    mean_square = tl.sum(x * x, axis=1)[:, None] / width
    normed = (x * tl.rsqrt(mean_square + eps)).to(dtype).to(tl.float32)
    return (normed * weight).to(dtype)


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    new_residual_ptr,
    num_rows,
    inner,
    width,
    stride_xo,
    stride_xi,
    stride_ro,
    stride_ri,
    stride_oo,
    stride_oi,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """``out = round(x * rsqrt(mean(x^2) + eps)) * weight``, x may be ``round(residual + x)``.

    UNIT_OFFSET: ``x * rsqrt(mean(x^2) + eps) * (1 + weight)``, rounded once.
    Tile [BLOCK_R, BLOCK_N], one program per BLOCK_R rows; row r is ``(r // inner, r % inner)``. The
    new residual is written densely. A row is read once and stays in registers, 32 elements a thread
    for N from 4096 to 16384.
    """
    # Rows are divided in int32, which costs a fraction of a division in int64.
    offs_r32 = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_n = offs_n < width
    mask = (offs_r32 < num_rows) & mask_n
    outer = (offs_r32 // inner).to(tl.int64)
    within = (offs_r32 % inner).to(tl.int64)
    offs_r = offs_r32.to(tl.int64)
    # [BLOCK_R, BLOCK_N]
    stored = tl.load(x_ptr + outer * stride_xo + within * stride_xi + offs_n, mask=mask, other=0.0)
    x = stored.to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(
            residual_ptr + outer * stride_ro + within * stride_ri + offs_n, mask=mask, other=0.0
        )
        total = (x + residual.to(tl.float32)).to(stored.dtype)
        tl.store(new_residual_ptr + offs_r * width + offs_n, total, mask=mask)
        x = total.to(tl.float32)
    # [1, BLOCK_N]
    weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    if UNIT_OFFSET:
        out = weighted_norm(x, 1 + weight, width, eps, tl.float32).to(stored.dtype)
    else:
        out = weighted_norm(x, weight, width, eps, stored.dtype)
    tl.store(out_ptr + outer * stride_oo + within * stride_oi + offs_n, out, mask=mask)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None,
    unit_offset: bool = False,
) -> torch.Tensor:
    """Launch over the rows of `x`; arguments as `pagoda_kernels.norm.rms_norm`."""
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, eps, out, None, unit_offset)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch over the rows of `x`; arguments as `pagoda_kernels.add_rms_norm`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    new_residual = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, residual, weight, eps, out, new_residual, unit_offset)
    return out, new_residual


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    new_residual: torch.Tensor | None,
    unit_offset: bool,
) -> None:
    if x.numel() == 0:
        return
    x_rows, out_rows = _as_rows(x), _as_rows(out)
    residual_rows = x_rows if residual is None else _as_rows(residual)
    outer, inner, width = x_rows.shape
    block_n = next_power_of_2(width)
    block_r = max(1, TILE_ELEMENTS // block_n)
    with on_device_of(x):
        rms_norm_kernel[(triton.cdiv(outer * inner, block_r),)](
            x_rows,
            residual_rows,
            weight.contiguous(),
            out_rows,
            out if new_residual is None else new_residual,
            outer * inner,
            inner,
            width,
            *x_rows.stride()[:2],
            *residual_rows.stride()[:2],
            *out_rows.stride()[:2],
            eps,
            HAS_RESIDUAL=residual is not None,
            UNIT_OFFSET=unit_offset,
            BLOCK_R=block_r,
            BLOCK_N=block_n,
            num_warps=num_warps_of(block_n),
        )


def num_warps_of(block_n: int) -> int:
    """Warps of a program that keeps rows of `block_n` elements in registers."""
    return min(16, max(4, block_n // 1024))


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """View of x as ``[outer, inner, N]``, which covers heads sliced out of a joined projection."""
    if x.dim() == 3:
        return x
    return x.reshape(-1, x.shape[-1])[:, None] if x.dim() != 2 else x[:, None]
