"""Attention over expanded K and V of two head sizes. Reference: `reference.mla_prefill`.

DeepSeek-V2 (2024), section 2.1; online softmax as FlashAttention-2 (Dao, 2023).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.attention.triton.attend_tiles import NO_SCORE, attended, fold, score_factor
from pagoda_kernels.attention.triton.mla_tiles import prefill_tile
from pagoda_kernels.attention.triton.prefill import sequence_of_tile
from pagoda_kernels.attention.varlen_batch import VarlenBatch
from pagoda_kernels.triton.launch import IS_INTERPRETED, next_power_of_2, on_device_of


@triton.jit
def _attend_expanded(
    q_main,
    q_rest,
    acc,
    row_max,
    row_sum,
    position,
    begin,
    end,
    k_ptr,
    v_ptr,
    stride_kt,
    stride_vt,
    scale,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_V: tl.constexpr,
    IS_MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Fold keys ``[begin, end)`` of one head of one sequence; see `attend_tiles`.

    Without IS_MASKED all rows must see all keys and ``end - begin`` be a multiple of BLOCK_N.
    """
    factor = score_factor(tl.zeros_like(row_max) + scale, False)
    offs_d = tl.arange(0, BLOCK_D)
    offs_e = BLOCK_D + tl.arange(0, BLOCK_E)
    offs_v = tl.arange(0, BLOCK_V)
    for start in range(begin, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_n = offs_n < end
        k_row = (k_ptr + offs_n.to(tl.int64) * stride_kt)[None, :]
        v_row = (v_ptr + offs_n.to(tl.int64) * stride_vt)[:, None]
        # [BLOCK_D, BLOCK_N]
        k_main = tl.load(k_row + offs_d[:, None], mask=mask_n[None, :], other=0.0)
        # [BLOCK_E, BLOCK_N]
        k_rest = tl.load(
            k_row + offs_e[:, None], mask=mask_n[None, :] & (offs_e < HEAD_DIM)[:, None], other=0.0
        )
        # [BLOCK_N, BLOCK_V]
        v = tl.load(
            v_row + offs_v[None, :],
            mask=mask_n[:, None] & (offs_v < HEAD_DIM_V)[None, :],
            other=0.0,
        )
        scores = tl.dot(q_main, k_main.to(q_main.dtype), input_precision="tf32x3")
        scores = tl.dot(q_rest, k_rest.to(q_rest.dtype), scores, input_precision="tf32x3")
        if IS_MASKED:
            visible = (offs_n[None, :] <= position[:, None]) & mask_n[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        acc, row_max, row_sum = fold(scores, factor, v.to(q_main.dtype), acc, row_max, row_sum)
    return acc, row_max, row_sum


@triton.jit(do_not_specialize=["cu_seqlens_q_ptr", "cu_seqlens_k_ptr", "num_seqs"])
def mla_prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    cu_seqlens_q_ptr,
    cu_seqlens_k_ptr,
    num_seqs,
    scale,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_V: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """``softmax(scale * q @ k^T) @ v``, causal, for BLOCK_M tokens of one head.

    Tiles q [BLOCK_M, BLOCK_D] and [BLOCK_M, BLOCK_E]: 192 dims as 128 and 64, since a tile of 192
    would be padded to 256. Grid (tiles, H), tiles counted per sequence and at most ``T // BLOCK_M +
    S``, the last of each sequence first: those have most to do.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    seq = sequence_of_tile(cu_seqlens_q_ptr, tile, num_seqs, BLOCK_M)
    q_start = tl.load(cu_seqlens_q_ptr + seq)
    k_start = tl.load(cu_seqlens_k_ptr + seq)
    num_new = tl.load(cu_seqlens_q_ptr + seq + 1) - q_start
    num_computed = tl.load(cu_seqlens_k_ptr + seq + 1) - k_start - num_new
    first_token = (tile - q_start // BLOCK_M - seq) * BLOCK_M
    if first_token >= num_new:
        return

    token = first_token + tl.arange(0, BLOCK_M)
    mask_m = token < num_new
    row = (q_start + token).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    offs_e = BLOCK_D + tl.arange(0, BLOCK_E)
    q_row = (q_ptr + row * stride_qt + head * stride_qh)[:, None]
    # [BLOCK_M, BLOCK_D]
    q_main = tl.load(q_row + offs_d[None, :], mask=mask_m[:, None], other=0.0)
    # [BLOCK_M, BLOCK_E]
    q_rest = tl.load(
        q_row + offs_e[None, :], mask=mask_m[:, None] & (offs_e < HEAD_DIM)[None, :], other=0.0
    )
    if UPCAST:
        q_main = q_main.to(tl.float32)
        q_rest = q_rest.to(tl.float32)

    full_end = (num_computed + first_token + 1) // BLOCK_N * BLOCK_N
    end = num_computed + tl.minimum(first_token + BLOCK_M, num_new)
    position = num_computed + token
    acc = tl.zeros([BLOCK_M, BLOCK_V], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], NO_SCORE, dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    k_head = k_ptr + k_start.to(tl.int64) * stride_kt + head * stride_kh
    v_head = v_ptr + k_start.to(tl.int64) * stride_vt + head * stride_vh
    acc, row_max, row_sum = _attend_expanded(
        q_main, q_rest, acc, row_max, row_sum, position, 0, full_end, k_head, v_head,
        stride_kt, stride_vt, scale, HEAD_DIM, HEAD_DIM_V, False,
        BLOCK_N, BLOCK_D, BLOCK_E, BLOCK_V,
    )  # fmt: skip
    acc, row_max, row_sum = _attend_expanded(
        q_main, q_rest, acc, row_max, row_sum, position, full_end, end, k_head, v_head,
        stride_kt, stride_vt, scale, HEAD_DIM, HEAD_DIM_V, True,
        BLOCK_N, BLOCK_D, BLOCK_E, BLOCK_V,
    )  # fmt: skip
    offs_v = tl.arange(0, BLOCK_V)
    tl.store(
        out_ptr + (row * stride_ot + head * stride_oh)[:, None] + offs_v[None, :],
        attended(acc, row_sum).to(out_ptr.dtype.element_ty),
        mask=mask_m[:, None] & (offs_v < HEAD_DIM_V)[None, :],
    )


def mla_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: VarlenBatch,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Fill `out` ``[T, H, DV]``; arguments as `pagoda_kernels.mla_prefill`, already checked."""
    num_tokens, num_heads, head_dim = q.shape
    if num_tokens == 0:
        return
    block_m, block_n, num_warps, num_stages = prefill_tile(
        head_dim, v.shape[2], q.element_size(), q.device
    )
    block_d = max(16, next_power_of_2(head_dim + 1) // 2)
    with on_device_of(q):
        mla_prefill_kernel[(num_tokens // block_m + len(batch.seqlens_q_host), num_heads)](
            q,
            k,
            v,
            out,
            batch.cu_seqlens_q,
            batch.cu_seqlens_k,
            len(batch.seqlens_q_host),
            float(scale),
            *q.stride()[:2],
            *k.stride()[:2],
            *v.stride()[:2],
            *out.stride()[:2],
            HEAD_DIM=head_dim,
            HEAD_DIM_V=v.shape[2],
            UPCAST=IS_INTERPRETED,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_D=block_d,
            BLOCK_E=max(16, next_power_of_2(max(1, head_dim - block_d))),
            BLOCK_V=next_power_of_2(v.shape[2]),
            num_warps=num_warps,
            num_stages=num_stages,
        )
