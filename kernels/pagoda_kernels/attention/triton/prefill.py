"""Attention of sequences with several new tokens.

Reference: `reference.paged_attention`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.triton.attend_tiles import (
    attend_described,
    attend_tiles,
    attended,
    cache_strides,
    initial_rows,
    query_operand,
    row_slopes,
)
from pagoda_kernels.attention.triton.cache_descriptors import Descriptors, describe
from pagoda_kernels.triton import launch
from pagoda_kernels.triton.launch import IS_INTERPRETED, next_power_of_2, on_device_of
from pagoda_kernels.triton.one_byte_tiles import PLAIN, kernel_cache, kernel_scale
from pagoda_kernels.tuning import attention_shape, tuned


@triton.jit
def sequence_of_tile(cu_seqlens_q_ptr, tile, num_seqs, BLOCK_Q: tl.constexpr):
    """Last sequence whose first tile, ``cu_seqlens_q[i] // BLOCK_Q + i``, is not after `tile`."""
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        first_tile = tl.load(cu_seqlens_q_ptr + middle) // BLOCK_Q + middle
        if first_tile <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(
    do_not_specialize=[
        "cu_seqlens_q_ptr",
        "context_lens_ptr",
        "block_tables_ptr",
        "num_seqs",
        "stride_bt",
    ]
)
def prefill_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    out_ptr,
    cu_seqlens_q_ptr,
    context_lens_ptr,
    block_tables_ptr,
    sink_ptr,
    slope_ptr,
    k_scale_ptr,
    v_scale_ptr,
    k_desc,
    v_desc,
    num_seqs,
    scale,
    soft_cap,
    stride_qt,
    stride_qh,
    stride_ot,
    stride_oh,
    stride_bt,
    stride_ks,
    stride_vs,
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
    IS_DESCRIBED: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``softmax(cap(scale * q @ k^T)) @ v``, causal, for BLOCK_Q tokens and the heads of a KV head.

    Tile q [BLOCK_M, BLOCK_D]: row m is token ``m // GROUP_SIZE``, head ``m % GROUP_SIZE`` of the
    group. Grid (tiles, HK), tiles counted per sequence and at most ``T // BLOCK_Q + S``, the last
    of each sequence first: those have most to do. Sequences with one new token are left to the
    decode kernel. Keys that all rows see are attended without masks, by tensor descriptors if
    IS_DESCRIBED. Online softmax as FlashAttention-2 (Dao, 2023).
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    seq = sequence_of_tile(cu_seqlens_q_ptr, tile, num_seqs, BLOCK_Q)
    seq_start = tl.load(cu_seqlens_q_ptr + seq)
    num_new = tl.load(cu_seqlens_q_ptr + seq + 1) - seq_start
    first_token = (tile - seq_start // BLOCK_Q - seq) * BLOCK_Q
    if first_token >= num_new or num_new == 1:
        return
    num_computed = tl.load(context_lens_ptr + seq) - num_new

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    token = first_token + offs_m // GROUP_SIZE
    head = kv_head * GROUP_SIZE + offs_m % GROUP_SIZE
    row = (seq_start + token).to(tl.int64)
    mask = ((token < num_new) & (offs_m < BLOCK_Q * GROUP_SIZE))[:, None] & (offs_d < HEAD_DIM)[
        None, :
    ]
    # [BLOCK_M, BLOCK_D]
    q = tl.load(
        q_ptr + (row * stride_qt + head * stride_qh)[:, None] + offs_d[None, :],
        mask=mask,
        other=0.0,
    )

    first_position = num_computed + first_token
    last_position = num_computed + tl.minimum(first_token + BLOCK_Q, num_new) - 1
    begin = 0
    full_begin = 0
    full_end = (first_position + 1) // BLOCK_N * BLOCK_N
    if WINDOW > 0:
        begin = tl.maximum(0, first_position + 1 - WINDOW) // BLOCK_N * BLOCK_N
        full_begin = tl.cdiv(tl.maximum(0, last_position + 1 - WINDOW), BLOCK_N) * BLOCK_N
        has_full = full_begin < full_end
        full_begin = tl.where(has_full, full_begin, begin)
        full_end = tl.where(has_full, full_end, begin)
    if KV_KIND != PLAIN:
        scale = scale * tl.load(k_scale_ptr + kv_head * stride_ks)
    q, scale = query_operand(q, scale, KV_KIND, UPCAST)
    position = num_computed + token
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    in_group = head < (kv_head + 1) * GROUP_SIZE
    row_max, row_sum = initial_rows(sink_ptr, head, in_group, True, HAS_SINKS, BLOCK_M)
    slope = row_slopes(slope_ptr, head, in_group, HAS_SLOPES, BLOCK_M)
    k_ptr = k_cache_ptr + kv_head * STRIDE_KH
    v_ptr = v_cache_ptr + kv_head * STRIDE_VH
    table_ptr = block_tables_ptr + seq.to(tl.int64) * stride_bt
    if WINDOW > 0:
        acc, row_max, row_sum = attend_tiles(
            q, acc, row_max, row_sum, position, begin, full_begin, k_ptr, v_ptr, table_ptr,
            scale, soft_cap, slope, STRIDE_KB, STRIDE_KT, STRIDE_VB, STRIDE_VT,
            BLOCK_SIZE, HEAD_DIM, WINDOW, HAS_CAP, HAS_SLOPES, True, KV_KIND, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    if IS_DESCRIBED:
        acc, row_max, row_sum = attend_described(
            q, acc, row_max, row_sum, position, full_begin, full_end, k_desc, v_desc,
            tl.program_id(1), table_ptr, scale, soft_cap, slope,
            BLOCK_SIZE, HAS_CAP, HAS_SLOPES, KV_KIND, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    else:
        acc, row_max, row_sum = attend_tiles(
            q, acc, row_max, row_sum, position, full_begin, full_end, k_ptr, v_ptr, table_ptr,
            scale, soft_cap, slope, STRIDE_KB, STRIDE_KT, STRIDE_VB, STRIDE_VT,
            BLOCK_SIZE, HEAD_DIM, WINDOW, HAS_CAP, HAS_SLOPES, False, KV_KIND, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    acc, row_max, row_sum = attend_tiles(
        q, acc, row_max, row_sum, position, full_end, last_position + 1, k_ptr, v_ptr, table_ptr,
        scale, soft_cap, slope, STRIDE_KB, STRIDE_KT, STRIDE_VB, STRIDE_VT,
        BLOCK_SIZE, HEAD_DIM, WINDOW, HAS_CAP, HAS_SLOPES, True, KV_KIND, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    out = attended(acc, row_sum)
    if KV_KIND != PLAIN:
        out = out * tl.load(v_scale_ptr + kv_head * stride_vs)
    tl.store(
        out_ptr + (row * stride_ot + head * stride_oh)[:, None] + offs_d[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=mask,
    )


def tile_shape(head_dim: int, element_bytes: int, device: torch.device) -> tuple[int, ...]:
    """(BLOCK_M, BLOCK_N, num_warps, num_stages): as tuned, else what fits an A100 without spills.

    Five stages buffer K and V twice, since the load of a block id comes before theirs.
    """
    if element_bytes == 4:
        block_m, block_n, num_warps, num_stages = (
            (16, 32, 4, 3) if head_dim <= 128 else (16, 16, 4, 3)
        )
    else:
        block_m, block_n, num_warps, num_stages = (
            (128, 64, 8, 5) if head_dim <= 128 else (64, 32, 8, 5)
        )
        if head_dim > 256:  # as Gemma 4's layers without windows
            block_m, block_n, num_stages = 32, 16, 3
        elif head_dim > 128 and launch.has_little_shared_memory(device):
            num_stages = 3
    return tuned(
        "attention_prefill",
        attention_shape(head_dim, element_bytes),
        device,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=num_warps,
        num_stages=num_stages,
    )


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    rule: ScoreRule,
    out: torch.Tensor,
    with_descriptors: bool | None = None,
) -> None:
    """Fill the rows of `out` that belong to sequences with several new tokens.

    `with_descriptors` overrides the choice by device; it cannot make a cache that does not suit
    them suit.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_seqs, num_kv_heads = len(batch.seqlens_q_host), k_cache.shape[2]
    group_size = num_heads // num_kv_heads
    k_cache, kv_kind = kernel_cache(k_cache)
    v_cache, _ = kernel_cache(v_cache)
    described = describe(k_cache, v_cache, q.element_size(), with_descriptors)
    if described is None:
        described = Descriptors(None, None, *tile_shape(head_dim, q.element_size(), q.device))
    block_n = described.block_n
    needs_registers = kv_kind != PLAIN.value or rule.window is not None
    if needs_registers and described.k is None and launch.capability(q.device) < 90:
        block_n = max(16, block_n // 2)  # q is in registers too
    block_m = max(described.block_m, next_power_of_2(group_size))
    block_q = block_m // group_size
    k_scale, stride_ks = kernel_scale(rule.k_scale, q)
    v_scale, stride_vs = kernel_scale(rule.v_scale, q)
    with on_device_of(q):
        prefill_kernel[(num_tokens // block_q + num_seqs, num_kv_heads)](
            q,
            k_cache,
            v_cache,
            out,
            batch.cu_seqlens_q,
            batch.context_lens,
            batch.block_tables,
            q if rule.sinks is None else rule.sinks,
            q if rule.alibi_slopes is None else rule.alibi_slopes,
            k_scale,
            v_scale,
            described.k,
            described.v,
            num_seqs,
            float(rule.scale),
            float(rule.soft_cap or 1.0),
            *q.stride()[:2],
            *out.stride()[:2],
            batch.block_tables.stride(0),
            stride_ks,
            stride_vs,
            **cache_strides(k_cache, v_cache),
            GROUP_SIZE=group_size,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=batch.block_size,
            WINDOW=rule.window or 0,
            HAS_CAP=rule.soft_cap is not None,
            HAS_SINKS=rule.sinks is not None,
            HAS_SLOPES=rule.alibi_slopes is not None,
            KV_KIND=kv_kind,
            IS_DESCRIBED=described.k is not None,
            UPCAST=IS_INTERPRETED,
            BLOCK_Q=block_q,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_D=max(16, next_power_of_2(head_dim)),  # what a matrix instruction takes
            num_warps=described.num_warps,
            num_stages=described.num_stages,
        )
