"""Rotary embedding of q and k in one launch. Reference: `reference.apply_rope`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of


@triton.jit
def _rotate_token(
    x_ptr,
    out_ptr,
    cos,
    sin,
    num_heads,
    stride_xh,
    stride_oh,
    HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_PASS: tl.constexpr,
):
    """All heads of one token of one tensor; cos and sin are [1, BLOCK_HALF] fp32."""
    offs_h = tl.arange(0, BLOCK_H)[:, None].to(tl.int64)
    offs_d = tl.arange(0, BLOCK_HALF)[None, :]
    in_heads = offs_h < num_heads
    mask = in_heads & (offs_d < HALF)
    x_head = x_ptr + offs_h * stride_xh
    out_head = out_ptr + offs_h * stride_oh
    dtype = out_ptr.dtype.element_ty
    if INTERLEAVED:
        offs_r = tl.arange(0, 2 * BLOCK_HALF)[None, :]
        mask_r = in_heads & (offs_r < 2 * HALF)
        # [BLOCK_H, 2 * BLOCK_HALF]
        pairs = tl.load(x_head + offs_r, mask=mask_r, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(pairs, [BLOCK_H, BLOCK_HALF, 2]))
        turned = tl.join(first * cos - second * sin, second * cos + first * sin)
        out = tl.reshape(turned, [BLOCK_H, 2 * BLOCK_HALF]).to(dtype)
        tl.store(out_head + offs_r, out, mask=mask_r)
    else:
        # [BLOCK_H, BLOCK_HALF]
        first = tl.load(x_head + offs_d, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(x_head + HALF + offs_d, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_head + offs_d, (first * cos - second * sin).to(dtype), mask=mask)
        tl.store(out_head + HALF + offs_d, (second * cos + first * sin).to(dtype), mask=mask)
    if BLOCK_PASS > 0:
        offs_p = 2 * HALF + tl.arange(0, BLOCK_PASS)[None, :]
        mask_p = in_heads & (offs_p < HEAD_DIM)
        # [BLOCK_H, BLOCK_PASS]
        passed = tl.load(x_head + offs_p, mask=mask_p, other=0.0)
        tl.store(out_head + offs_p, passed, mask=mask_p)


@triton.jit(do_not_specialize=["position_ptr"])
def rope_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    position_ptr,
    cos_sin_ptr,
    num_heads,
    num_kv_heads,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    HALF: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_HQ: tl.constexpr,
    BLOCK_HK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_PASS: tl.constexpr,
):
    """``(a, b) -> (a cos - b sin, b cos + a sin)`` for dims ``(i, i + HALF)`` of all heads.

    In fp32; INTERLEAVED turns dims ``(2 i, 2 i + 1)``.
    Program (t, 0) turns the query heads of token t, tile [BLOCK_HQ, BLOCK_HALF], and program (t, 1)
    its KV heads.
    """
    token = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_HALF)[None, :]
    mask_d = offs_d < HALF
    position = tl.load(position_ptr + token).to(tl.int64)
    # [1, BLOCK_HALF]
    row = cos_sin_ptr + position * (2 * HALF)
    cos = tl.load(row + offs_d, mask=mask_d, other=0.0)
    sin = tl.load(row + HALF + offs_d, mask=mask_d, other=0.0)
    if tl.program_id(1) == 0:
        _rotate_token(
            q_ptr + token * stride_qt,
            q_out_ptr + token * num_heads * HEAD_DIM,
            cos,
            sin,
            num_heads,
            stride_qh,
            HEAD_DIM,
            HALF,
            HEAD_DIM,
            INTERLEAVED,
            BLOCK_HQ,
            BLOCK_HALF,
            BLOCK_PASS,
        )
    else:
        _rotate_token(
            k_ptr + token * stride_kt,
            k_out_ptr + token * num_kv_heads * HEAD_DIM,
            cos,
            sin,
            num_kv_heads,
            stride_kh,
            HEAD_DIM,
            HALF,
            HEAD_DIM,
            INTERLEAVED,
            BLOCK_HK,
            BLOCK_HALF,
            BLOCK_PASS,
        )


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch two programs per token; arguments as `pagoda_kernels.apply_rope`."""
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, rot_dim = k.shape[1], cos_sin.shape[1]
    if num_tokens == 0:
        return q_out, k_out
    with on_device_of(q):
        rope_kernel[(num_tokens, 2)](
            q,
            k,
            q_out,
            k_out,
            positions.contiguous(),
            cos_sin.contiguous(),
            num_heads,
            num_kv_heads,
            *q.stride()[:2],
            *k.stride()[:2],
            HALF=rot_dim // 2,
            HEAD_DIM=head_dim,
            INTERLEAVED=interleaved,
            BLOCK_HQ=next_power_of_2(num_heads),
            BLOCK_HK=next_power_of_2(num_kv_heads),
            BLOCK_HALF=next_power_of_2(rot_dim // 2),
            BLOCK_PASS=next_power_of_2(head_dim - rot_dim) if rot_dim < head_dim else 0,
        )
    return q_out, k_out
