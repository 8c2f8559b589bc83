"""Activations to fp8 with scales per token or per 128 columns.

Reference: `reference.quantise_fp8`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.matmul.weights import FP8
from pagoda_kernels.triton.launch import next_power_of_2, on_device_of
from pagoda_kernels.triton.one_byte_tiles import (
    E4M3_BITS,
    NATIVE,
    converts_e4m3,
    quantised,
)

TILE_ELEMENTS = 4096
"""Elements one program works on at a time."""


@triton.jit
def row_scale(largest):
    """``max(largest / 448, 1e-12)``, what 1.0 stands for in a row quantised to e4m3."""
    return tl.maximum(largest / 448.0, 1e-12)


@triton.jit
def quantise_fp8_kernel(
    x_ptr,
    given_scale_ptr,
    out_ptr,
    scale_ptr,
    num_k,
    num_groups,
    group_size,
    stride_xm,
    HAS_SCALE: tl.constexpr,
    E4M3: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``scale = max |x| / 448``, ``out = round(x / scale)``, for groups of columns of one row.

    Tile [BLOCK_G, BLOCK_K], a group to a line; groups longer than BLOCK_K are read twice. Grid (M,
    tiles of groups). With HAS_SCALE the scale is given and nothing is searched or written.
    """
    row = tl.program_id(0).to(tl.int64)
    offs_g = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    mask_g = offs_g < num_groups
    x_row = x_ptr + row * stride_xm
    if HAS_SCALE:
        scale = tl.zeros([BLOCK_G], dtype=tl.float32) + tl.load(given_scale_ptr)
    else:
        largest = tl.zeros([BLOCK_G, BLOCK_K], dtype=tl.float32)
        for start in range(0, group_size, BLOCK_K):
            within = start + tl.arange(0, BLOCK_K)
            offs_k = offs_g[:, None] * group_size + within[None, :]
            mask = (within < group_size)[None, :] & (offs_k < num_k)
            # [BLOCK_G, BLOCK_K]
            x = tl.load(x_row + offs_k, mask=mask, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(x))
        scale = row_scale(tl.max(largest, axis=1))
        tl.store(scale_ptr + row * num_groups + offs_g, scale, mask=mask_g)
    inverse = 1.0 / scale
    for start in range(0, group_size, BLOCK_K):
        within = start + tl.arange(0, BLOCK_K)
        offs_k = offs_g[:, None] * group_size + within[None, :]
        mask = (within < group_size)[None, :] & (offs_k < num_k)
        # [BLOCK_G, BLOCK_K]
        x = tl.load(x_row + offs_k, mask=mask, other=0.0).to(tl.float32)
        code = quantised(x, inverse[:, None], out_ptr.dtype.element_ty, E4M3)
        tl.store(out_ptr + row * num_k + offs_k, code, mask=mask)


def empty_codes(x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Uninitialised e4m3 ``[T, width]`` beside `x`, the same as kernels take it, and its E4M3."""
    out = torch.empty((len(x), width), dtype=torch.uint8, device=x.device)
    values = out.view(FP8)
    if converts_e4m3(x.device):
        return values, values, NATIVE.value
    return values, out, E4M3_BITS.value


def quantise_fp8(
    x: torch.Tensor, group_size: int | None, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch over rows and groups; arguments as `pagoda_kernels.quantise_fp8`."""
    num_rows, num_k = x.shape
    num_groups = 1 if group_size is None else triton.cdiv(num_k, group_size)
    out, codes, kind = empty_codes(x, num_k)
    scales = scale
    if scales is None:
        shape = (num_rows,) if group_size is None else (num_rows, num_groups)
        scales = torch.empty(shape, dtype=torch.float32, device=x.device)
    if out.numel() == 0:
        return out, scales
    block_k = min(TILE_ELEMENTS, next_power_of_2(group_size or num_k))
    block_g = min(TILE_ELEMENTS // block_k, next_power_of_2(num_groups))
    with on_device_of(x):
        quantise_fp8_kernel[(num_rows, triton.cdiv(num_groups, block_g))](
            x,
            scales,
            codes,
            scales,
            num_k,
            num_groups,
            group_size or num_k,
            x.stride(0),
            HAS_SCALE=scale is not None,
            E4M3=kind,
            BLOCK_G=block_g,
            BLOCK_K=block_k,
        )
    return out, scales
