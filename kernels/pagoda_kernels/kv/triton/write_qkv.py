"""QK-norm, RoPE and KV write of a joined projection. Reference: `reference.write_qkv`.

Norm per head as Qwen3 (Yang et al., 2025); rotation as RoFormer (Su et al., 2021), half form.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of
from pagoda_kernels.triton.one_byte_tiles import PLAIN, kernel_cache, kernel_scale, quantised

TILE_ELEMENTS = 1024
"""Elements one program works on: 8 per thread, so that rows are read in 16-byte words."""


@triton.jit
def _store_parts(
    ptr,
    first,
    second,
    passed,
    inverse_scale,
    in_heads,
    HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KV_KIND: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_PASS: tl.constexpr,
):
    """Quantise and store the parts of heads; `ptr` [BLOCK_H, 1], at the first dim of each head."""
    dtype: tl.constexpr = ptr.dtype.element_ty
    offs_d = tl.arange(0, BLOCK_HALF)[None, :]
    mask = in_heads & (offs_d < HALF)
    tl.store(ptr + offs_d, quantised(first, inverse_scale, dtype, KV_KIND), mask=mask)
    tl.store(ptr + HALF + offs_d, quantised(second, inverse_scale, dtype, KV_KIND), mask=mask)
    if BLOCK_PASS > 0:
        offs_p = 2 * HALF + tl.arange(0, BLOCK_PASS)[None, :]
        mask_p = in_heads & (offs_p < HEAD_DIM)
        tl.store(ptr + offs_p, quantised(passed, inverse_scale, dtype, KV_KIND), mask=mask_p)


@triton.jit
def _turned(
    first,
    second,
    passed,
    weight_ptr,
    cos_sin_ptr,
    position,
    eps,
    HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_PASS: tl.constexpr,
):
    """Norm and rotation of the parts of heads, each rounded to the dtype they came in."""
    dtype: tl.constexpr = first.dtype
    offs_d = tl.arange(0, BLOCK_HALF)[None, :]
    mask_d = offs_d < HALF
    if HAS_NORM:
        offs_p = 2 * HALF + tl.arange(0, BLOCK_PASS if BLOCK_PASS > 0 else 1)[None, :]
        mask_p = offs_p < HEAD_DIM
        a = first.to(tl.float32)
        b = second.to(tl.float32)
        p = passed.to(tl.float32)
        squares = tl.sum(a * a + b * b, axis=1) + tl.sum(p * p, axis=1)
        factor = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        # [1, BLOCK_HALF]
        w_first = tl.load(weight_ptr + offs_d, mask=mask_d, other=0.0).to(tl.float32)
        w_second = tl.load(weight_ptr + HALF + offs_d, mask=mask_d, other=0.0).to(tl.float32)
        # [1, BLOCK_PASS]
        w_passed = tl.load(weight_ptr + offs_p, mask=mask_p, other=0.0).to(tl.float32)
        first = ((a * factor).to(dtype).to(tl.float32) * w_first).to(dtype)
        second = ((b * factor).to(dtype).to(tl.float32) * w_second).to(dtype)
        passed = ((p * factor).to(dtype).to(tl.float32) * w_passed).to(dtype)
    if HAS_ROPE:
        row = cos_sin_ptr + position * (2 * HALF)
        # [1, BLOCK_HALF]
        cos = tl.load(row + offs_d, mask=mask_d, other=0.0)
        sin = tl.load(row + HALF + offs_d, mask=mask_d, other=0.0)
        a = first.to(tl.float32)
        b = second.to(tl.float32)
        first = (a * cos - b * sin).to(dtype)
        second = (b * cos + a * sin).to(dtype)
    return first, second, passed


@triton.jit(do_not_specialize=["position_ptr", "slot_ptr"])
def write_qkv_kernel(
    qkv_ptr,
    position_ptr,
    cos_sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_out_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    k_scale_ptr,
    v_scale_ptr,
    num_heads,
    num_kv_heads,
    eps,
    stride_xt,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    stride_ks,
    stride_vs,
    HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    KV_KIND: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_PASS: tl.constexpr,
):
    """``q, k = rope(norm(q)), rope(norm(k))`` in fp32; q is stored densely, k and v at their slots.

    ``norm(x) = round(x * rsqrt(mean(x^2) + eps)) * weight``, ``rope(a, b) = (a cos - b sin, b cos +
    a sin)`` for dims ``(i, i + HALF)``. Tiles [BLOCK_H, BLOCK_HALF] twice and, for dims that are
    not rotated, [BLOCK_H, BLOCK_PASS]. Grid (T, tiles): BLOCK_H heads of q, k or v per program,
    never of two of them. Dims of k and v with a negative slot are not stored.
    """
    token = tl.program_id(0).to(tl.int64)
    q_tiles = tl.cdiv(num_heads, BLOCK_H)
    k_tiles = tl.cdiv(num_kv_heads, BLOCK_H)
    tile = tl.program_id(1)
    is_q = tile < q_tiles
    is_k = (tile >= q_tiles) & (tile < q_tiles + k_tiles)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if (slot < 0) & (tile >= q_tiles):
        return
    # Heads before this kind's own, and how many it has.
    before = tl.where(is_q, 0, tl.where(is_k, num_heads, num_heads + num_kv_heads))
    count = tl.where(is_q, num_heads, num_kv_heads)
    tile -= tl.where(is_q, 0, tl.where(is_k, q_tiles, q_tiles + k_tiles))
    offs_h = (tile * BLOCK_H + tl.arange(0, BLOCK_H))[:, None].to(tl.int64)
    offs_d = tl.arange(0, BLOCK_HALF)[None, :]
    offs_p = 2 * HALF + tl.arange(0, BLOCK_PASS if BLOCK_PASS > 0 else 1)[None, :]
    in_heads = offs_h < count
    mask_d = offs_d < HALF
    mask_p = (offs_p < HEAD_DIM) & (BLOCK_PASS > 0)
    x_ptr = qkv_ptr + token * stride_xt + (before + offs_h) * HEAD_DIM
    # [BLOCK_H, BLOCK_HALF]
    first = tl.load(x_ptr + offs_d, mask=in_heads & mask_d, other=0.0)
    second = tl.load(x_ptr + HALF + offs_d, mask=in_heads & mask_d, other=0.0)
    # [BLOCK_H, BLOCK_PASS]
    passed = tl.load(x_ptr + offs_p, mask=in_heads & mask_p, other=0.0)
    position = tl.load(position_ptr + token).to(tl.int64)
    if is_q:
        first, second, passed = _turned(
            first, second, passed, q_norm_ptr, cos_sin_ptr, position, eps,
            HALF, HEAD_DIM, HAS_NORM, HAS_ROPE, BLOCK_HALF, BLOCK_PASS,
        )  # fmt: skip
        _store_parts(
            q_out_ptr + (token * num_heads + offs_h) * HEAD_DIM, first, second, passed, 1.0,
            in_heads, HALF, HEAD_DIM, PLAIN, BLOCK_HALF, BLOCK_PASS,
        )  # fmt: skip
        return
    inverse_scale = tl.full([BLOCK_H, 1], 1.0, dtype=tl.float32)
    block_id = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    if is_k:
        first, second, passed = _turned(
            first, second, passed, k_norm_ptr, cos_sin_ptr, position, eps,
            HALF, HEAD_DIM, HAS_NORM, HAS_ROPE, BLOCK_HALF, BLOCK_PASS,
        )  # fmt: skip
        if KV_KIND != PLAIN:
            # [BLOCK_H, 1]
            scale = tl.load(k_scale_ptr + offs_h * stride_ks, mask=in_heads, other=1.0)
            inverse_scale = tl.div_rn(1.0, scale)
        _store_parts(
            k_cache_ptr + block_id * stride_kb + offset * stride_kt + offs_h * stride_kh,
            first, second, passed, inverse_scale,
            in_heads, HALF, HEAD_DIM, KV_KIND, BLOCK_HALF, BLOCK_PASS,
        )  # fmt: skip
    else:
        if KV_KIND != PLAIN:
            # [BLOCK_H, 1]
            scale = tl.load(v_scale_ptr + offs_h * stride_vs, mask=in_heads, other=1.0)
            inverse_scale = tl.div_rn(1.0, scale)
        _store_parts(
            v_cache_ptr + block_id * stride_vb + offset * stride_vt + offs_h * stride_vh,
            first, second, passed, inverse_scale,
            in_heads, HALF, HEAD_DIM, KV_KIND, BLOCK_HALF, BLOCK_PASS,
        )  # fmt: skip


def write_qkv(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    num_heads: int,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> torch.Tensor:
    """Launch over tokens and groups of heads; arguments as `pagoda_kernels.write_qkv`."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    q_out = torch.empty((len(qkv), num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if len(qkv) == 0:
        return q_out
    rot_dim = head_dim if cos_sin is None else cos_sin.shape[1]
    block_h = min(max(1, TILE_ELEMENTS // next_power_of_2(head_dim)), next_power_of_2(num_heads))
    k_cache, kv_kind = kernel_cache(k_cache)
    v_cache, _ = kernel_cache(v_cache)
    k_scale, stride_ks = kernel_scale(k_scale, qkv)
    v_scale, stride_vs = kernel_scale(v_scale, qkv)
    num_tiles = triton.cdiv(num_heads, block_h) + 2 * triton.cdiv(num_kv_heads, block_h)
    with on_device_of(qkv):
        write_qkv_kernel[(len(qkv), num_tiles)](
            qkv,
            positions.contiguous(),
            qkv if cos_sin is None else cos_sin.contiguous(),
            qkv if q_norm is None else q_norm.contiguous(),
            qkv if k_norm is None else k_norm.contiguous(),
            q_out,
            k_cache,
            v_cache,
            slot_mapping.contiguous(),
            k_scale,
            v_scale,
            num_heads,
            num_kv_heads,
            eps,
            qkv.stride(0),
            *k_cache.stride()[:3],
            *v_cache.stride()[:3],
            stride_ks,
            stride_vs,
            HALF=rot_dim // 2,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=k_cache.shape[1],
            HAS_NORM=q_norm is not None,
            HAS_ROPE=cos_sin is not None,
            KV_KIND=kv_kind,
            BLOCK_H=block_h,
            BLOCK_HALF=next_power_of_2(rot_dim // 2),
            BLOCK_PASS=next_power_of_2(head_dim - rot_dim) if rot_dim < head_dim else 0,
            num_warps=4,
        )
    return q_out
