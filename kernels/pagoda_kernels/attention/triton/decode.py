"""Attention of sequences with one new token, their KV split among programs and merged after.

Reference: `reference.paged_attention`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.triton.attend_tiles import (
    attend_tiles,
    attended,
    cache_strides,
    initial_rows,
    query_operand,
    row_slopes,
)
from pagoda_kernels.attention.triton.merge_splits import merge_splits
from pagoda_kernels.attention.triton.split_slots import num_splits_of, place_of, tokens_per_split
from pagoda_kernels.attention.triton.splits import (
    Splits,
    even_splits,
    invariant_splits,
    shared_splits,
)
from pagoda_kernels.triton.launch import (
    IS_INTERPRETED,
    next_power_of_2,
    num_processors,
    on_device_of,
)
from pagoda_kernels.triton.one_byte_tiles import PLAIN, kernel_cache, kernel_scale
from pagoda_kernels.tuning import attention_shape, tuned


@triton.jit(
    do_not_specialize=[
        "span_ptr",
        "cu_seqlens_q_ptr",
        "context_lens_ptr",
        "block_tables_ptr",
        "stride_bt",
        "num_seqs",
        "per_seq",
        "share",
        "most_splits",
        "min_split_tokens",
    ]
)
def decode_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    span_ptr,
    cu_seqlens_q_ptr,
    context_lens_ptr,
    block_tables_ptr,
    sink_ptr,
    slope_ptr,
    k_scale_ptr,
    v_scale_ptr,
    scale,
    soft_cap,
    stride_qt,
    stride_qh,
    stride_ot,
    stride_oh,
    stride_bt,
    stride_ks,
    stride_vs,
    num_heads,
    num_seqs,
    per_seq,
    share,
    most_splits,
    min_split_tokens,
    STRIDE_KB: tl.constexpr,
    STRIDE_KT: tl.constexpr,
    STRIDE_KH: tl.constexpr,
    STRIDE_VB: tl.constexpr,
    STRIDE_VT: tl.constexpr,
    STRIDE_VH: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    KV_KIND: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``softmax(cap(scale * q @ k^T)) @ v`` over one split of a sequence's KV.

    Tile q [BLOCK_G, BLOCK_D]: the query heads of one KV head. Grid (slots, HK); `place_of` tells
    the slot's sequence and split, if it has any; sequences with several new tokens have none. A
    sequence in one split is written to `out`. Of others each split's own result goes to `partial`
    [slots, H, D] fp32 and its log2-sum-exp to `lse` [slots, H]. Every sequence's first slot and
    number of splits go to `span` [S, 2]. The sink belongs to split 0. Split-K as Flash-Decoding
    (Dao et al., 2023).
    """
    slot = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    seq, split, least_tokens = place_of(
        slot, cu_seqlens_q_ptr, context_lens_ptr, num_seqs,
        per_seq, share, most_splits, min_split_tokens, WINDOW, BLOCK_N,
    )  # fmt: skip
    if seq < 0:
        return
    row = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    if tl.load(cu_seqlens_q_ptr + seq + 1) - row != 1:
        return
    context = tl.load(context_lens_ptr + seq)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(0, context - WINDOW)
    split_tokens = tokens_per_split(context - first, most_splits, least_tokens, BLOCK_N)
    num_splits = num_splits_of(context - first, split_tokens)
    if split >= num_splits:
        return
    # Tiles begin at multiples of their size, so the last split may have one more than the others.
    begin = first // BLOCK_N * BLOCK_N + split * split_tokens
    end = begin + split_tokens
    if split == num_splits - 1:
        end = context
    if split == 0:
        tl.store(span_ptr + 2 * seq, slot)
        tl.store(span_ptr + 2 * seq + 1, num_splits)

    offs_g = tl.arange(0, BLOCK_G)
    offs_d = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP_SIZE + offs_g
    mask_g = offs_g < GROUP_SIZE
    mask = mask_g[:, None] & (offs_d < HEAD_DIM)[None, :]
    # [BLOCK_G, BLOCK_D]
    q = tl.load(
        q_ptr + row * stride_qt + (head * stride_qh)[:, None] + offs_d[None, :],
        mask=mask,
        other=0.0,
    )
    position = tl.zeros([BLOCK_G], dtype=tl.int32) + (context - 1)
    acc = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    row_max, row_sum = initial_rows(sink_ptr, head, mask_g, split == 0, HAS_SINKS, BLOCK_G)
    slope = row_slopes(slope_ptr, head, mask_g, HAS_SLOPES, BLOCK_G)
    if KV_KIND != PLAIN:
        scale = scale * tl.load(k_scale_ptr + kv_head * stride_ks)
    q, scale = query_operand(q, scale, KV_KIND, UPCAST)
    k_ptr = k_cache_ptr + kv_head * STRIDE_KH
    v_ptr = v_cache_ptr + kv_head * STRIDE_VH
    table_ptr = block_tables_ptr + seq.to(tl.int64) * stride_bt
    full_end = begin
    if WINDOW == 0:
        full_end = end // BLOCK_N * BLOCK_N
        acc, row_max, row_sum = attend_tiles(
            q, acc, row_max, row_sum, position, begin, full_end, k_ptr, v_ptr, table_ptr,
            scale, soft_cap, slope, STRIDE_KB, STRIDE_KT, STRIDE_VB, STRIDE_VT,
            BLOCK_SIZE, HEAD_DIM, WINDOW, HAS_CAP, HAS_SLOPES, False, KV_KIND, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    acc, row_max, row_sum = attend_tiles(
        q, acc, row_max, row_sum, position, full_end, end, k_ptr, v_ptr, table_ptr,
        scale, soft_cap, slope, STRIDE_KB, STRIDE_KT, STRIDE_VB, STRIDE_VT,
        BLOCK_SIZE, HEAD_DIM, WINDOW, HAS_CAP, HAS_SLOPES, True, KV_KIND, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    result = attended(acc, row_sum)
    if KV_KIND != PLAIN:
        result = result * tl.load(v_scale_ptr + kv_head * stride_vs)
    if num_splits > 1:
        at = slot.to(tl.int64) * num_heads + head
        tl.store(partial_ptr + (at * HEAD_DIM)[:, None] + offs_d[None, :], result, mask=mask)
        tl.store(lse_ptr + at, row_max + tl.log2(row_sum), mask=mask_g)
    else:
        tl.store(
            out_ptr + row * stride_ot + (head * stride_oh)[:, None] + offs_d[None, :],
            result.to(out_ptr.dtype.element_ty),
            mask=mask,
        )


def tile_shape(
    head_dim: int, element_bytes: int, kv_bytes: int, device: torch.device
) -> tuple[int, ...]:
    """(BLOCK_N, num_warps, num_stages): as tuned, else what fits an A100 without spills.

    Five stages buffer K and V twice, since the load of a block id comes before theirs.
    """
    if element_bytes == 4:
        block_n, num_stages = (32, 3) if head_dim <= 128 else (16, 3)
    else:
        block_n, num_stages = (64, 5) if head_dim <= 128 else (32, 5)
        if head_dim > 256:
            block_n, num_stages = 16, 5
    shape = attention_shape(head_dim, element_bytes, kv_bytes)
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
    splits = _splits(
        batch,
        num_kv_heads,
        rule.window,
        num_processors(q.device),
        num_splits,
        is_batch_invariant,
    )
    num_partials = splits.num_slots if splits.may_split else 0
    partial = q.new_empty((num_partials, num_heads, head_dim), dtype=torch.float32)
    lse = q.new_empty((num_partials, num_heads), dtype=torch.float32)
    spans = torch.empty((num_seqs, 2), dtype=torch.int32, device=q.device)
    block_n, num_warps, num_stages = tile_shape(
        head_dim, q.element_size(), k_cache.element_size(), q.device
    )
    k_cache, kv_kind = kernel_cache(k_cache)
    v_cache, _ = kernel_cache(v_cache)
    k_scale, stride_ks = kernel_scale(rule.k_scale, q)
    v_scale, stride_vs = kernel_scale(rule.v_scale, q)
    with on_device_of(q):
        decode_kernel[(splits.num_slots, num_kv_heads)](
            q,
            k_cache,
            v_cache,
            out,
            partial,
            lse,
            spans,
            batch.cu_seqlens_q,
            batch.context_lens,
            batch.block_tables,
            q if rule.sinks is None else rule.sinks,
            q if rule.alibi_slopes is None else rule.alibi_slopes,
            k_scale,
            v_scale,
            float(rule.scale),
            float(rule.soft_cap or 1.0),
            *q.stride()[:2],
            *out.stride()[:2],
            batch.block_tables.stride(0),
            stride_ks,
            stride_vs,
            num_heads,
            num_seqs,
            splits.per_seq,
            splits.share,
            splits.most,
            splits.min_tokens,
            **cache_strides(k_cache, v_cache),
            GROUP_SIZE=group_size,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=batch.block_size,
            WINDOW=rule.window or 0,
            HAS_CAP=rule.soft_cap is not None,
            HAS_SINKS=rule.sinks is not None,
            HAS_SLOPES=rule.alibi_slopes is not None,
            KV_KIND=kv_kind,
            UPCAST=IS_INTERPRETED,
            BLOCK_G=max(16, next_power_of_2(group_size)),
            BLOCK_N=block_n,
            BLOCK_D=max(16, next_power_of_2(head_dim)),  # what a matrix instruction takes
            num_warps=num_warps,
            num_stages=num_stages,
        )
    if splits.may_split:
        merge_splits(partial, lse, spans, out, batch.cu_seqlens_q)


def _splits(
    batch: AttentionBatch,
    num_kv_heads: int,
    window: int | None,
    processors: int,
    num_splits: int | None,
    is_batch_invariant: bool,
) -> Splits:
    num_seqs, max_tokens = len(batch.seqlens_q_host), max(batch.context_lens_host)
    if window is not None:
        max_tokens = min(max_tokens, window)
    if is_batch_invariant:
        return invariant_splits(num_seqs, max_tokens)
    if num_splits is not None:
        return even_splits(num_seqs, num_splits, num_splits, 1)
    return shared_splits(num_seqs, num_kv_heads, max_tokens, processors)
