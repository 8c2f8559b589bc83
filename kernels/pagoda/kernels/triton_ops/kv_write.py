"""Writes new K and V to their cache slots. Reference: `reference.write_kv`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda.kernels.triton_ops.launch import next_power_of_2, on_device_of


@triton.jit
def write_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    num_kv_heads,
    head_dim,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_kcb,
    stride_kct,
    stride_kch,
    stride_vcb,
    stride_vct,
    stride_vch,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``cache[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = new``; one program per token, all its heads.

    Tile [BLOCK_H, BLOCK_D]. Negative slots are skipped.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot < 0:
        return
    block_id = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    offs_h = tl.arange(0, BLOCK_H)[:, None].to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask = (offs_h < num_kv_heads) & (offs_d < head_dim)
    # [BLOCK_H, BLOCK_D]
    k = tl.load(k_ptr + token * stride_kt + offs_h * stride_kh + offs_d, mask=mask, other=0.0)
    v = tl.load(v_ptr + token * stride_vt + offs_h * stride_vh + offs_d, mask=mask, other=0.0)
    k_row = k_cache_ptr + block_id * stride_kcb + offset * stride_kct
    v_row = v_cache_ptr + block_id * stride_vcb + offset * stride_vct
    tl.store(k_row + offs_h * stride_kch + offs_d, k, mask=mask)
    tl.store(v_row + offs_h * stride_vch + offs_d, v, mask=mask)


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Launch one program per token; arguments as `pagoda.kernels.write_kv`."""
    num_tokens, num_kv_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    with on_device_of(k):
        write_kv_kernel[(num_tokens,)](
            k,
            v,
            k_cache,
            v_cache,
            slot_mapping.contiguous(),
            num_kv_heads,
            head_dim,
            *k.stride()[:2],
            *v.stride()[:2],
            *k_cache.stride()[:3],
            *v_cache.stride()[:3],
            BLOCK_SIZE=k_cache.shape[1],
            BLOCK_H=next_power_of_2(num_kv_heads),
            BLOCK_D=next_power_of_2(head_dim),
        )
