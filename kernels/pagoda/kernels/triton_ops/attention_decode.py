"""Attention of sequences with one new token, their KV split among programs and merged after.

Reference: `reference.paged_attention`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda.kernels.attention_batch import AttentionBatch
from pagoda.kernels.score_rule import ScoreRule
from pagoda.kernels.triton_ops.attend_tiles import NO_SCORE, attend_tiles, attended
from pagoda.kernels.triton_ops.launch import (
    IS_INTERPRETED,
    next_power_of_2,
    num_processors,
    on_device_of,
)

MIN_SPLIT_TOKENS = 256
"""KV tokens below which splitting costs more in merging than it saves."""

MAX_SPLITS = 64


@triton.jit
def decode_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    cu_seqlens_q_ptr,
    context_lens_ptr,
    block_tables_ptr,
    scale,
    soft_cap,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kt,
    stride_kh,
    stride_vb,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    stride_bt,
    num_heads,
    num_splits,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``softmax(cap(scale * q @ k^T)) @ v`` over one split of a sequence's KV.

    Tile q [BLOCK_G, BLOCK_D]: the query heads of one KV head. Grid (S, HK, splits). Writes `out`;
    if IS_SPLIT, the split's own result to `partial` [S, H, splits, D] fp32 and its log2-sum-exp to
    `lse` [S, H, splits], -inf for a split without keys. Skips sequences with several new tokens.
    """
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    row = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    if tl.load(cu_seqlens_q_ptr + seq + 1) - row != 1:
        return
    context = tl.load(context_lens_ptr + seq)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(0, context - WINDOW)
    split_tokens = tl.cdiv(tl.cdiv(context - first, num_splits), BLOCK_N) * BLOCK_N
    begin = first + split * split_tokens
    end = tl.minimum(begin + split_tokens, context)

    offs_g = tl.arange(0, BLOCK_G)
    offs_d = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP_SIZE + offs_g
    mask_g = offs_g < GROUP_SIZE
    mask = mask_g[:, None] & (offs_d < HEAD_DIM)[None, :]
    partial_row = (seq * num_heads + head) * num_splits + split
    if IS_SPLIT and begin >= end:
        empty = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
        tl.store(lse_ptr + partial_row, empty, mask=mask_g)
        return
    # [BLOCK_G, BLOCK_D]
    q = tl.load(
        q_ptr + row * stride_qt + (head * stride_qh)[:, None] + offs_d[None, :],
        mask=mask,
        other=0.0,
    )
    if UPCAST:
        q = q.to(tl.float32)
    position = tl.zeros([BLOCK_G], dtype=tl.int32) + (context - 1)
    acc = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_G], NO_SCORE, dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_G], dtype=tl.float32)
    acc, row_max, row_sum = attend_tiles(
        q, acc, row_max, row_sum, position, begin, end,
        k_cache_ptr + kv_head * stride_kh, v_cache_ptr + kv_head * stride_vh,
        block_tables_ptr + seq * stride_bt,
        stride_kb, stride_kt, stride_vb, stride_vt, scale, soft_cap,
        BLOCK_SIZE, HEAD_DIM, WINDOW, HAS_CAP, True, UPCAST, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    result = attended(acc, row_sum)
    if IS_SPLIT:
        tl.store(
            partial_ptr + (partial_row * HEAD_DIM)[:, None] + offs_d[None, :], result, mask=mask
        )
        tl.store(lse_ptr + partial_row, row_max + tl.log2(row_sum), mask=mask_g)
    else:
        tl.store(
            out_ptr + row * stride_ot + (head * stride_oh)[:, None] + offs_d[None, :],
            result.to(out_ptr.dtype.element_ty),
            mask=mask,
        )


@triton.jit
def merge_kernel(
    partial_ptr,
    lse_ptr,
    out_ptr,
    cu_seqlens_q_ptr,
    num_heads,
    num_splits,
    stride_ot,
    stride_oh,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``out = sum_i 2^(lse_i - lse) partial_i`` where ``2^lse = sum_i 2^lse_i``.

    Tile [BLOCK_S, BLOCK_D]; one program per sequence and head.
    """
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    if tl.load(cu_seqlens_q_ptr + seq + 1) - row != 1:
        return
    offs_s = tl.arange(0, BLOCK_S)
    offs_d = tl.arange(0, BLOCK_D)
    first = (seq * num_heads + head) * num_splits
    # [BLOCK_S]
    lse = tl.load(lse_ptr + first + offs_s, mask=offs_s < num_splits, other=float("-inf"))
    weights = tl.exp2(lse - tl.max(lse, axis=0))
    mask_d = offs_d < HEAD_DIM
    # [BLOCK_S, BLOCK_D]
    partial = tl.load(
        partial_ptr + ((first + offs_s) * HEAD_DIM)[:, None] + offs_d[None, :],
        mask=(lse > float("-inf"))[:, None] & mask_d[None, :],
        other=0.0,
    )
    merged = tl.sum(partial * weights[:, None], axis=0) / tl.sum(weights, axis=0)
    tl.store(
        out_ptr + row * stride_ot + head * stride_oh + offs_d,
        merged.to(out_ptr.dtype.element_ty),
        mask=mask_d,
    )


def choose_num_splits(num_seqs: int, num_kv_heads: int, max_context: int, processors: int) -> int:
    """Splits that give every processor two programs, none shorter than MIN_SPLIT_TOKENS."""
    wanted = -(-2 * processors // (num_seqs * num_kv_heads))
    return max(1, min(wanted, max_context // MIN_SPLIT_TOKENS, MAX_SPLITS))


def tile_shape(head_dim: int, element_bytes: int) -> tuple[int, int]:
    """(BLOCK_N, num_stages) that fit an A100 and spill next to nothing.

    Five stages buffer K and V twice, since the load of a block id comes before theirs.
    """
    if element_bytes == 4:
        return (32, 3) if head_dim <= 128 else (16, 3)
    return (64, 5) if head_dim <= 128 else (32, 5)


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    rule: ScoreRule,
    out: torch.Tensor,
    num_splits: int | None = None,
) -> None:
    """Fill the rows of `out` that belong to sequences with one new token."""
    num_heads, head_dim = q.shape[1:]
    num_seqs, num_kv_heads = len(batch.seqlens_q_host), k_cache.shape[2]
    group_size = num_heads // num_kv_heads
    if num_splits is None:
        max_context = max(batch.context_lens_host)
        visible = max_context if rule.window is None else min(max_context, rule.window)
        num_splits = choose_num_splits(num_seqs, num_kv_heads, visible, num_processors(q.device))
    is_split = num_splits > 1
    partial = q.new_empty(
        (num_seqs, num_heads, num_splits, head_dim) if is_split else (1,), dtype=torch.float32
    )
    lse = q.new_empty((num_seqs, num_heads, num_splits) if is_split else (1,), dtype=torch.float32)
    block_n, num_stages = tile_shape(head_dim, q.element_size())
    block_d = next_power_of_2(head_dim)
    with on_device_of(q):
        decode_kernel[(num_seqs, num_kv_heads, num_splits)](
            q,
            k_cache,
            v_cache,
            out,
            partial,
            lse,
            batch.cu_seqlens_q,
            batch.context_lens,
            batch.block_tables,
            rule.scale,
            rule.soft_cap or 1.0,
            *q.stride()[:2],
            *k_cache.stride()[:3],
            *v_cache.stride()[:3],
            *out.stride()[:2],
            batch.block_tables.stride(0),
            num_heads,
            num_splits,
            GROUP_SIZE=group_size,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=batch.block_size,
            WINDOW=rule.window or 0,
            HAS_CAP=rule.soft_cap is not None,
            IS_SPLIT=is_split,
            UPCAST=IS_INTERPRETED,
            BLOCK_G=max(16, next_power_of_2(group_size)),
            BLOCK_N=block_n,
            BLOCK_D=block_d,
            num_warps=4,
            num_stages=num_stages,
        )
        if is_split:
            merge_kernel[(num_seqs, num_heads)](
                partial,
                lse,
                out,
                batch.cu_seqlens_q,
                num_heads,
                num_splits,
                *out.stride()[:2],
                HEAD_DIM=head_dim,
                BLOCK_S=next_power_of_2(num_splits),
                BLOCK_D=block_d,
            )
