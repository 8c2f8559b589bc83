"""RMS norm to fp8 with a scale per row. Reference: `reference.rms_norm_quantised`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.matmul.triton.quantise_fp8 import empty_codes, row_scale
from pagoda_kernels.norm.triton.rms_norm import TILE_ELEMENTS, num_warps_of, weighted_norm
from pagoda_kernels.triton.launch import next_power_of_2, on_device_of
from pagoda_kernels.triton.one_byte_tiles import quantised


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_quantised_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    scale_ptr,
    new_residual_ptr,
    num_rows,
    width,
    stride_xr,
    stride_rr,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    E4M3: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """``y = rms_norm(x)``, ``scale = max |y| / 448``, ``out = round(y / scale)``.

    Tile [BLOCK_R, BLOCK_N], one program per BLOCK_R rows, read once. All outputs are dense.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_r = rows[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_n = offs_n < width
    mask = (offs_r < num_rows) & mask_n
    # [BLOCK_R, BLOCK_N]
    stored = tl.load(x_ptr + offs_r * stride_xr + offs_n, mask=mask, other=0.0)
    x = stored.to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + offs_r * stride_rr + offs_n, mask=mask, other=0.0)
        total = (x + residual.to(tl.float32)).to(stored.dtype)
        tl.store(new_residual_ptr + offs_r * width + offs_n, total, mask=mask)
        x = total.to(tl.float32)
    # [1, BLOCK_N]
    weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    y = weighted_norm(x, weight, width, eps, stored.dtype).to(tl.float32)
    scale = row_scale(tl.max(tl.abs(y), axis=1))
    tl.store(scale_ptr + rows, scale, mask=rows < num_rows)
    code = quantised(y, (1.0 / scale)[:, None], out_ptr.dtype.element_ty, E4M3)
    tl.store(out_ptr + offs_r * width + offs_n, code, mask=mask)


def rms_norm_quantised(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch over the rows of `x`; arguments as `pagoda_kernels.norm.rms_norm_quantised`."""
    return _launch(x, None, weight, eps, None)


def add_rms_norm_quantised(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch over the rows of `x`; arguments as `pagoda_kernels.add_rms_norm_quantised`."""
    new_residual = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return *_launch(x, residual, weight, eps, new_residual), new_residual


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    new_residual: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows, width = x.shape
    out, codes, kind = empty_codes(x, width)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return out, scales
    block_n = next_power_of_2(width)
    block_r = max(1, TILE_ELEMENTS // block_n)
    with on_device_of(x):
        rms_norm_quantised_kernel[(triton.cdiv(num_rows, block_r),)](
            x,
            x if residual is None else residual,
            weight.contiguous(),
            codes,
            scales,
            x if new_residual is None else new_residual,
            num_rows,
            width,
            x.stride(0),
            x.stride(0) if residual is None else residual.stride(0),
            eps,
            HAS_RESIDUAL=residual is not None,
            E4M3=kind,
            BLOCK_R=block_r,
            BLOCK_N=block_n,
            num_warps=num_warps_of(block_n),
        )
    return out, scales
