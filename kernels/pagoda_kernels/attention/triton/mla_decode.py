"""Absorbed latent attention over the paged cache. Reference: `reference.mla_decode`.

DeepSeek-V2 (2024), section 2.1; splits merged as in Flash-Decoding (Dao et al., 2023).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.triton.attend_tiles import LOG2_E, NO_SCORE, attended
from pagoda_kernels.attention.triton.merge_splits import merge_splits
from pagoda_kernels.attention.triton.mla_tiles import decode_tile
from pagoda_kernels.attention.triton.split_slots import num_splits_of, tokens_per_split
from pagoda_kernels.attention.triton.splits import (
    Splits,
    chosen_splits,
    even_splits,
    invariant_splits,
)
from pagoda_kernels.triton.launch import (
    IS_INTERPRETED,
    next_power_of_2,
    num_processors,
    on_device_of,
)


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


@triton.jit(
    do_not_specialize=[
        "span_ptr",
        "cu_seqlens_q_ptr",
        "context_lens_ptr",
        "block_tables_ptr",
        "num_seqs",
        "stride_bt",
        "per_token",
        "most_splits",
        "min_split_tokens",
    ]
)
def mla_decode_kernel(
    q_ptr,
    cache_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    span_ptr,
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
    per_token,
    most_splits,
    min_split_tokens,
    RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_DECODE: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """``softmax(scale * (q_c @ c^T + q_r @ r^T)) @ c``, c the latents and r the rotated keys.

    Tiles q_c 2 x [BLOCK_H, BLOCK_R], q_r [BLOCK_H, BLOCK_P]: heads of one token. Grid (slots times
    head tiles), head tiles first so that those who read the same latents run together; a token has
    `per_token` slots, one for each split. c is loaded once, as key and as value. A token attended
    in one split is written to `out`. Of others each split's own result goes to `partial` [slots, H,
    RANK] fp32 and its log2-sum-exp to `lse` [slots, H]. Every token's first slot and number of
    splits go to `span` [T, 2]. With IS_DECODE token i belongs to sequence i.
    """
    head_tiles = tl.cdiv(num_heads, BLOCK_H)
    slot = tl.program_id(0) // head_tiles
    head_tile = tl.program_id(0) % head_tiles
    token = slot // per_token
    split = slot % per_token
    seq = token
    if not IS_DECODE:
        seq = _sequence_of_token(cu_seqlens_q_ptr, token, num_seqs)
    # Tokens of the sequence this one sees: those that end with itself.
    context = tl.load(context_lens_ptr + seq)
    context -= tl.load(cu_seqlens_q_ptr + seq + 1) - 1 - token
    split_tokens = tokens_per_split(context, most_splits, min_split_tokens, BLOCK_N)
    begin = split * split_tokens
    end = tl.minimum(begin + split_tokens, context)
    num_splits = num_splits_of(context, split_tokens)
    if split >= num_splits:
        return
    if split == 0:
        tl.store(span_ptr + 2 * token, slot)
        tl.store(span_ptr + 2 * token + 1, num_splits)

    head = (head_tile * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)
    mask_h = head < num_heads
    row = token.to(tl.int64)
    # The latent in two halves: products and results of one hold half the registers of the whole.
    offs_r = tl.arange(0, BLOCK_R)
    offs_u = BLOCK_R + tl.arange(0, BLOCK_R)
    offs_p = RANK + tl.arange(0, BLOCK_P)
    mask_r = (offs_r < RANK)[None, :]
    mask_u = (offs_u < RANK)[None, :]
    mask_p = (offs_p < RANK + ROPE_DIM)[None, :]
    q_row = (q_ptr + row * stride_qt + head * stride_qh)[:, None]
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
    lower = attended(lower, row_sum)
    upper = attended(upper, row_sum)
    if num_splits > 1:
        at = slot.to(tl.int64) * num_heads + head
        tl.store(lse_ptr + at, row_max + tl.log2(row_sum), mask=mask_h)
        to_ptr = partial_ptr + (at * RANK)[:, None]
        tl.store(to_ptr + offs_r[None, :], lower, mask=mask_h[:, None] & mask_r)
        tl.store(to_ptr + offs_u[None, :], upper, mask=mask_h[:, None] & mask_u)
    else:
        out_row = out_ptr + row * stride_ot + (head * stride_oh)[:, None]
        dtype: tl.constexpr = out_ptr.dtype.element_ty
        tl.store(out_row + offs_r[None, :], lower.to(dtype), mask=mask_h[:, None] & mask_r)
        tl.store(out_row + offs_u[None, :], upper.to(dtype), mask=mask_h[:, None] & mask_u)


def mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    out: torch.Tensor,
    num_splits: int | None = None,
    is_batch_invariant: bool = False,
) -> None:
    """Fill `out` ``[T, H, RANK]``; arguments as `pagoda_kernels.mla_decode`, already checked."""
    num_tokens, num_heads, width = q.shape
    rank = out.shape[2]
    if num_tokens == 0:
        return
    block_h, block_n, num_warps, num_stages = decode_tile(
        num_heads, rank, q.element_size(), q.device
    )
    head_tiles = triton.cdiv(num_heads, block_h)
    num_seqs = len(batch.seqlens_q_host)
    splits = _splits(batch, num_tokens, head_tiles, q.device, num_splits, is_batch_invariant)
    num_partials = splits.num_slots if splits.may_split else 0
    partial = q.new_empty((num_partials, num_heads, rank), dtype=torch.float32)
    lse = q.new_empty((num_partials, num_heads), dtype=torch.float32)
    spans = torch.empty((num_tokens, 2), dtype=torch.int32, device=q.device)
    with on_device_of(q):
        mla_decode_kernel[(splits.num_slots * head_tiles,)](
            q,
            latent_cache,
            out,
            partial,
            lse,
            spans,
            batch.cu_seqlens_q,
            batch.context_lens,
            batch.block_tables,
            num_seqs,
            float(scale),
            *q.stride()[:2],
            *latent_cache.stride()[:2],
            *out.stride()[:2],
            batch.block_tables.stride(0),
            num_heads,
            splits.per_seq,
            splits.most,
            splits.min_tokens,
            RANK=rank,
            ROPE_DIM=width - rank,
            BLOCK_SIZE=batch.block_size,
            IS_DECODE=num_tokens == num_seqs,
            UPCAST=IS_INTERPRETED,
            BLOCK_H=block_h,
            BLOCK_N=block_n,
            BLOCK_R=max(16, next_power_of_2(rank) // 2),
            BLOCK_P=max(16, next_power_of_2(width - rank)),
            num_warps=num_warps,
            num_stages=num_stages,
        )
    if splits.may_split:
        merge_splits(partial, lse, spans, out)


def _splits(
    batch: AttentionBatch,
    num_tokens: int,
    head_tiles: int,
    device: torch.device,
    num_splits: int | None,
    is_batch_invariant: bool,
) -> Splits:
    max_tokens = max(batch.context_lens_host)
    if is_batch_invariant:
        return invariant_splits(num_tokens, max_tokens)
    if num_splits is not None:
        return even_splits(num_tokens, num_splits, num_splits, 1)
    return chosen_splits(num_tokens, head_tiles, max_tokens, num_processors(device))
