"""Absorbed latent attention over the paged cache. Reference: `reference_attention.mla_decode`.

DeepSeek-V2 (2024), section 2.1; splits merged as in Flash-Decoding (Dao et al., 2023).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda.kernels.attention_batch import AttentionBatch
from pagoda.kernels.triton_ops.attend_tiles import LOG2_E, NO_SCORE, attended
from pagoda.kernels.triton_ops.launch import (
    IS_INTERPRETED,
    next_power_of_2,
    num_processors,
    on_device_of,
)
from pagoda.kernels.triton_ops.merge_splits import merge_splits
from pagoda.kernels.triton_ops.mla_tiles import decode_tile
from pagoda.kernels.triton_ops.splits import choose_splits


@triton.jit
def _sequence_of_token(cu_seqlens_q_ptr, token, num_seqs):
    """Sequence whose new tokens include `token`."""
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_seqlens_q_ptr + middle) <= token:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def mla_decode_kernel(
    q_ptr,
    cache_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    cu_seqlens_q_ptr,
    context_lens_ptr,
    block_tables_ptr,
    num_seqs,
    scale,
    stride_qt,
    stride_qh,
    stride_cb,
    stride_ct,
    stride_ot,
    stride_oh,
    stride_bt,
    num_heads,
    num_splits,
    most_splits,
    min_split_tokens,
    RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_DECODE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """``softmax(scale * (q_c @ c^T + q_r @ r^T)) @ c``, c the latents and r the rotated keys.

    Tiles q_c 2 x [BLOCK_H, BLOCK_R], q_r [BLOCK_H, BLOCK_P]: heads of one token. Grid (head tiles,
    T, splits), head tiles first so that those who read the same latents run together. c is loaded
    once, as key and as value. Writes `out`; if IS_SPLIT, the split's own result to `partial` [T, H,
    splits, RANK] fp32 and its log2-sum-exp to `lse` [T, H, splits], -inf for a split without keys.
    With IS_DECODE token i belongs to sequence i.
    """
    token = tl.program_id(1)
    split = tl.program_id(2)
    seq = token
    if not IS_DECODE:
        seq = _sequence_of_token(cu_seqlens_q_ptr, token, num_seqs)
    # Tokens of the sequence this one sees: those that end with itself.
    context = tl.load(context_lens_ptr + seq)
    context -= tl.load(cu_seqlens_q_ptr + seq + 1) - 1 - token
    split_tokens = tl.maximum(tl.cdiv(context, most_splits), min_split_tokens)
    split_tokens = tl.cdiv(split_tokens, BLOCK_N) * BLOCK_N
    begin = split * split_tokens
    end = tl.minimum(begin + split_tokens, context)

    head = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    mask_h = head < num_heads
    row = token.to(tl.int64)
    partial_row = (row * num_heads + head) * num_splits + split
    if IS_SPLIT and begin >= end:
        empty = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
        tl.store(lse_ptr + partial_row, empty, mask=mask_h)
        return
    # The latent in two halves: products and results of one hold half the registers of the whole.
    offs_r = tl.arange(0, BLOCK_R)
    offs_u = BLOCK_R + tl.arange(0, BLOCK_R)
    offs_p = RANK + tl.arange(0, BLOCK_P)
    mask_r = (offs_r < RANK)[None, :]
    mask_u = (offs_u < RANK)[None, :]
    mask_p = (offs_p < RANK + ROPE_DIM)[None, :]
    q_row = (q_ptr + row * stride_qt + head.to(tl.int64) * stride_qh)[:, None]
    # [BLOCK_H, BLOCK_R]
    q_lower = tl.load(q_row + offs_r[None, :], mask=mask_h[:, None] & mask_r, other=0.0)
    q_upper = tl.load(q_row + offs_u[None, :], mask=mask_h[:, None] & mask_u, other=0.0)
    # [BLOCK_H, BLOCK_P]
    q_rope = tl.load(q_row + offs_p[None, :], mask=mask_h[:, None] & mask_p, other=0.0)
    if UPCAST:
        q_lower = q_lower.to(tl.float32)
        q_upper = q_upper.to(tl.float32)
        q_rope = q_rope.to(tl.float32)
    lower = tl.zeros([BLOCK_H, BLOCK_R], dtype=tl.float32)
    upper = tl.zeros([BLOCK_H, BLOCK_R], dtype=tl.float32)
    row_max = tl.full([BLOCK_H], NO_SCORE, dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_H], dtype=tl.float32)
    table_ptr = block_tables_ptr + seq.to(tl.int64) * stride_bt
    for start in range(begin, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_n = (offs_n < end)[:, None]
        if BLOCK_SIZE % BLOCK_N == 0:
            # The tile lies in one block.
            block_id = tl.load(table_ptr + start // BLOCK_SIZE).to(tl.int64)
            offset = start % BLOCK_SIZE + tl.arange(0, BLOCK_N)
        else:
            # [BLOCK_N]
            block_id = tl.load(table_ptr + offs_n // BLOCK_SIZE, mask=offs_n < end, other=0)
            block_id = block_id.to(tl.int64)
            offset = offs_n % BLOCK_SIZE
        c_row = (cache_ptr + block_id * stride_cb + offset * stride_ct)[:, None]
        # [BLOCK_N, BLOCK_R]
        c_lower = tl.load(c_row + offs_r[None, :], mask=mask_n & mask_r, other=0.0)
        c_upper = tl.load(c_row + offs_u[None, :], mask=mask_n & mask_u, other=0.0)
        # [BLOCK_N, BLOCK_P]
        c_rope = tl.load(c_row + offs_p[None, :], mask=mask_n & mask_p, other=0.0)
        c_lower = c_lower.to(q_lower.dtype)
        c_upper = c_upper.to(q_lower.dtype)
        c_rope = c_rope.to(q_lower.dtype)
        scores = tl.dot(q_rope, tl.trans(c_rope), input_precision="tf32x3")
        scores = tl.dot(q_lower, tl.trans(c_lower), scores, input_precision="tf32x3")
        scores = tl.dot(q_upper, tl.trans(c_upper), scores, input_precision="tf32x3")
        scores = tl.where((offs_n < end)[None, :], scores * (scale * LOG2_E), float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        kept = tl.exp2(row_max - new_max)
        weights = tl.exp2(scores - new_max[:, None])
        row_sum = row_sum * kept + tl.sum(weights, axis=1)
        row_max = new_max
        weights = weights.to(c_lower.dtype)
        lower = tl.dot(weights, c_lower, lower * kept[:, None], input_precision="tf32x3")
        upper = tl.dot(weights, c_upper, upper * kept[:, None], input_precision="tf32x3")
    if IS_SPLIT:
        to_ptr = partial_ptr + (partial_row * RANK)[:, None]
        tl.store(lse_ptr + partial_row, row_max + tl.log2(row_sum), mask=mask_h)
    else:
        to_ptr = out_ptr + row * stride_ot + (head * stride_oh)[:, None]
    dtype: tl.constexpr = to_ptr.dtype.element_ty
    lower = attended(lower, row_sum).to(dtype)
    tl.store(to_ptr + offs_r[None, :], lower, mask=mask_h[:, None] & mask_r)
    upper = attended(upper, row_sum).to(dtype)
    tl.store(to_ptr + offs_u[None, :], upper, mask=mask_h[:, None] & mask_u)


def mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    out: torch.Tensor,
    num_splits: int | None = None,
    is_batch_invariant: bool = False,
) -> None:
    """Fill `out` ``[T, H, RANK]``; arguments as `pagoda.kernels.mla_decode`, already checked."""
    num_tokens, num_heads, width = q.shape
    rank = out.shape[2]
    if num_tokens == 0:
        return
    block_h, block_n, num_warps, num_stages = decode_tile(
        num_heads, rank, q.element_size(), q.device
    )
    head_tiles = triton.cdiv(num_heads, block_h)
    splits = choose_splits(
        num_tokens * head_tiles,
        max(batch.context_lens_host),
        num_processors(q.device),
        num_splits,
        is_batch_invariant,
    )
    partial = q.new_empty(
        (num_tokens, num_heads, splits.num, rank) if splits.is_split else (1,), dtype=torch.float32
    )
    lse = q.new_empty(
        (num_tokens, num_heads, splits.num) if splits.is_split else (1,), dtype=torch.float32
    )
    num_seqs = len(batch.seqlens_q_host)
    with on_device_of(q):
        mla_decode_kernel[(head_tiles, num_tokens, splits.num)](
            q,
            latent_cache,
            out,
            partial,
            lse,
            batch.cu_seqlens_q,
            batch.context_lens,
            batch.block_tables,
            num_seqs,
            scale,
            *q.stride()[:2],
            *latent_cache.stride()[:2],
            *out.stride()[:2],
            batch.block_tables.stride(0),
            num_heads,
            splits.num,
            splits.most,
            splits.min_tokens,
            RANK=rank,
            ROPE_DIM=width - rank,
            BLOCK_SIZE=batch.block_size,
            IS_DECODE=num_tokens == num_seqs,
            IS_SPLIT=splits.is_split,
            UPCAST=IS_INTERPRETED,
            BLOCK_H=block_h,
            BLOCK_N=block_n,
            BLOCK_R=max(16, next_power_of_2(rank) // 2),
            BLOCK_P=max(16, next_power_of_2(width - rank)),
            num_warps=num_warps,
            num_stages=num_stages,
        )
    if splits.is_split:
        merge_splits(partial, lse, out)
