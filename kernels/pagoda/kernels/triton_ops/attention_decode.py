"""Attention of sequences with one new token, their KV split among programs and merged after.

Reference: `reference.paged_attention`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda.kernels.attention_batch import AttentionBatch
from pagoda.kernels.score_rule import ScoreRule
from pagoda.kernels.triton_ops.attend_tiles import attend_tiles, attended, initial_rows
from pagoda.kernels.triton_ops.launch import (
    IS_INTERPRETED,
    next_power_of_2,
    num_processors,
    on_device_of,
)
from pagoda.kernels.triton_ops.merge_splits import merge_splits
from pagoda.kernels.triton_ops.quantised_kv import PLAIN, kernel_cache, kernel_scale
from pagoda.kernels.triton_ops.splits import choose_splits
from pagoda.kernels.tuning import attention_shape, tuned


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
    sink_ptr,
    k_scale_ptr,
    v_scale_ptr,
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
    stride_ks,
    stride_vs,
    num_heads,
    num_splits,
    most_splits,
    min_split_tokens,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    KV_KIND: tl.constexpr,
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
    A split has the tokens that make `most_splits` of a sequence, at least `min_split_tokens`, both
    whole tiles. The sink belongs to split 0. Split-K as Flash-Decoding (Dao et al., 2023).
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
    split_tokens = tl.maximum(tl.cdiv(context - first, most_splits), min_split_tokens)
    split_tokens = tl.cdiv(split_tokens, BLOCK_N) * BLOCK_N
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
    row_max, row_sum = initial_rows(sink_ptr, head, mask_g, split == 0, HAS_SINKS, BLOCK_G)
    if KV_KIND != PLAIN:
        scale = scale * tl.load(k_scale_ptr + kv_head * stride_ks)
    acc, row_max, row_sum = attend_tiles(
        q, acc, row_max, row_sum, position, begin, end,
        k_cache_ptr + kv_head * stride_kh, v_cache_ptr + kv_head * stride_vh,
        block_tables_ptr + seq * stride_bt,
        stride_kb, stride_kt, stride_vb, stride_vt, scale, soft_cap,
        BLOCK_SIZE, HEAD_DIM, WINDOW, HAS_CAP, True, KV_KIND, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    result = attended(acc, row_sum)
    if KV_KIND != PLAIN:
        result = result * tl.load(v_scale_ptr + kv_head * stride_vs)
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


def tile_shape(head_dim: int, element_bytes: int, device: torch.device) -> tuple[int, ...]:
    """(BLOCK_N, num_warps, num_stages): as tuned, else what fits an A100 without spills.

    Five stages buffer K and V twice, since the load of a block id comes before theirs.
    """
    if element_bytes == 4:
        block_n, num_stages = (32, 3) if head_dim <= 128 else (16, 3)
    else:
        block_n, num_stages = (64, 5) if head_dim <= 128 else (32, 5)
    shape = attention_shape(head_dim, element_bytes)
    return tuned(
        "attention_decode", shape, device, BLOCK_N=block_n, num_warps=4, num_stages=num_stages
    )


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    rule: ScoreRule,
    out: torch.Tensor,
    num_splits: int | None = None,
    is_batch_invariant: bool = False,
) -> None:
    """Fill the rows of `out` that belong to sequences with one new token."""
    num_heads, head_dim = q.shape[1:]
    num_seqs, num_kv_heads = len(batch.seqlens_q_host), k_cache.shape[2]
    group_size = num_heads // num_kv_heads
    max_context = max(batch.context_lens_host)
    splits = choose_splits(
        num_seqs * num_kv_heads,
        max_context if rule.window is None else min(max_context, rule.window),
        num_processors(q.device),
        num_splits,
        is_batch_invariant,
    )
    partial = q.new_empty(
        (num_seqs, num_heads, splits.num, head_dim) if splits.is_split else (1,),
        dtype=torch.float32,
    )
    lse = q.new_empty(
        (num_seqs, num_heads, splits.num) if splits.is_split else (1,), dtype=torch.float32
    )
    block_n, num_warps, num_stages = tile_shape(head_dim, q.element_size(), q.device)
    k_cache, kv_kind = kernel_cache(k_cache)
    v_cache, _ = kernel_cache(v_cache)
    k_scale, stride_ks = kernel_scale(rule.k_scale, q)
    v_scale, stride_vs = kernel_scale(rule.v_scale, q)
    with on_device_of(q):
        decode_kernel[(num_seqs, num_kv_heads, splits.num)](
            q,
            k_cache,
            v_cache,
            out,
            partial,
            lse,
            batch.cu_seqlens_q,
            batch.context_lens,
            batch.block_tables,
            q if rule.sinks is None else rule.sinks,
            k_scale,
            v_scale,
            rule.scale,
            rule.soft_cap or 1.0,
            *q.stride()[:2],
            *k_cache.stride()[:3],
            *v_cache.stride()[:3],
            *out.stride()[:2],
            batch.block_tables.stride(0),
            stride_ks,
            stride_vs,
            num_heads,
            splits.num,
            splits.most,
            splits.min_tokens,
            GROUP_SIZE=group_size,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=batch.block_size,
            WINDOW=rule.window or 0,
            HAS_CAP=rule.soft_cap is not None,
            HAS_SINKS=rule.sinks is not None,
            KV_KIND=kv_kind,
            IS_SPLIT=splits.is_split,
            UPCAST=IS_INTERPRETED,
            BLOCK_G=max(16, next_power_of_2(group_size)),
            BLOCK_N=block_n,
            BLOCK_D=next_power_of_2(head_dim),
            num_warps=num_warps,
            num_stages=num_stages,
        )
    if splits.is_split:
        merge_splits(partial, lse, out, batch.cu_seqlens_q)
