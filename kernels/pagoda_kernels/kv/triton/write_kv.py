"""Writes new K and V to their cache slots. Reference: `reference.write_kv`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of
from pagoda_kernels.triton.one_byte_tiles import PLAIN, kernel_cache, kernel_scale, quantised


@triton.jit(do_not_specialize=["slot_ptr"])
def write_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    k_scale_ptr,
    v_scale_ptr,
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
    stride_ks,
    stride_vs,
    BLOCK_SIZE: tl.constexpr,
    KV_KIND: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``cache[slot // BLOCK_SIZE, slot % BLOCK_SIZE] = new``; one program per token, all its heads.

    Tile [BLOCK_H, BLOCK_D]. Negative slots are skipped. Quantised as `one_byte_tiles.quantised`.
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
    k_inverse = 1.0
    v_inverse = 1.0
    if KV_KIND != PLAIN:
        # [BLOCK_H, 1]
        mask_h = offs_h < num_kv_heads
        k_inverse = tl.div_rn(1.0, tl.load(k_scale_ptr + offs_h * stride_ks, mask_h, other=1.0))
        v_inverse = tl.div_rn(1.0, tl.load(v_scale_ptr + offs_h * stride_vs, mask_h, other=1.0))
    k = quantised(k, k_inverse, k_cache_ptr.dtype.element_ty, KV_KIND)
    v = quantised(v, v_inverse, v_cache_ptr.dtype.element_ty, KV_KIND)
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
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Launch one program per token; arguments as `pagoda_kernels.write_kv`."""
    num_tokens, num_kv_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    k_cache, kv_kind = kernel_cache(k_cache)
    v_cache, _ = kernel_cache(v_cache)
    k_scales, stride_ks = kernel_scale(k_scale, k)
    v_scales, stride_vs = kernel_scale(v_scale, k)
    with on_device_of(k):
        write_kv_kernel[(num_tokens,)](
            k,
            v,
            k_cache,
            v_cache,
            slot_mapping.contiguous(),
            k_scales,
            v_scales,
            num_kv_heads,
            head_dim,
            *k.stride()[:2],
            *v.stride()[:2],
            *k_cache.stride()[:3],
            *v_cache.stride()[:3],
            stride_ks,
            stride_vs,
            BLOCK_SIZE=k_cache.shape[1],
            KV_KIND=kv_kind,
            BLOCK_H=next_power_of_2(num_kv_heads),
            BLOCK_D=next_power_of_2(head_dim),
        )
