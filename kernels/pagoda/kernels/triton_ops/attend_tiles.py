"""The inner loop both attention kernels share: online softmax over tiles of paged KV.

Knows one sequence's block table and one KV head. Knows nothing of grids or splits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from pagoda.kernels.triton_ops.quantised_kv import dequantised

NO_SCORE: tl.constexpr = tl.constexpr(-1.0e30)
"""Running maximum before any key was seen: finite, so that tiles hidden from a row make no NaN."""

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def soft_capped(scores, soft_cap):
    """``soft_cap * tanh(scores / soft_cap)``; Triton has no tanh outside libdevice."""
    return soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * scores / soft_cap) + 1.0))


@triton.jit
def attended(acc, row_sum):
    """``acc / row_sum``, and 0 for rows that saw no key (rows of a tile that are no token)."""
    return acc / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]


@triton.jit
def initial_rows(sink_ptr, head, mask, is_first, HAS_SINKS: tl.constexpr, BLOCK_M: tl.constexpr):
    """(row_max, row_sum) before any key: nothing seen, or the sink of each row's head.

    The sink counts once, where `is_first`.
    """
    row_max = tl.full([BLOCK_M], NO_SCORE, dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    if HAS_SINKS:
        # [BLOCK_M]
        sink = tl.load(sink_ptr + head, mask=mask, other=0.0).to(tl.float32)
        row_max = tl.where(is_first, sink * LOG2_E, row_max)
        row_sum = tl.where(is_first, 1.0, row_sum)
    return row_max, row_sum


@triton.jit
def fold(scores, v, acc, row_max, row_sum):
    """``m' = max(m, s)``, ``acc' = acc * 2^(m - m') + 2^(s - m') @ v``, row_sum alike."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    kept = tl.exp2(row_max - new_max)
    weights = tl.exp2(scores - new_max[:, None])
    row_sum = row_sum * kept + tl.sum(weights, axis=1)
    acc = acc * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="tf32x3")
    return acc, new_max, row_sum


@triton.jit
def attend_tiles(
    q,
    acc,
    row_max,
    row_sum,
    position,
    begin,
    end,
    k_ptr,
    v_ptr,
    table_ptr,
    stride_kb,
    stride_kt,
    stride_vb,
    stride_vt,
    scale,
    soft_cap,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
    KV_KIND: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """`fold` keys ``[begin, end)`` into ``(acc, row_max, row_sum)``; scores in units of log2.

    Tiles: q [M, BLOCK_D], acc [M, BLOCK_D] fp32, row_max, row_sum and position [M]. A row sees keys
    up to its position and, if WINDOW > 0, the last WINDOW of those. Without IS_MASKED all rows must
    see all keys and ``end - begin`` be a multiple of BLOCK_N. `k_ptr`, `v_ptr`: of the KV head.
    Keys and values are taken to the dtype of q. Products of fp32 are three of tf32, which keeps
    fp32 accuracy on tensor cores.
    """
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    for start in range(begin, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_n = offs_n < end
        # [BLOCK_N]
        block_id = tl.load(table_ptr + offs_n // BLOCK_SIZE, mask=mask_n, other=0).to(tl.int64)
        offset = (offs_n % BLOCK_SIZE).to(tl.int64)
        k_row = k_ptr + block_id * stride_kb + offset * stride_kt
        v_row = v_ptr + block_id * stride_vb + offset * stride_vt
        # [BLOCK_D, BLOCK_N]
        k = tl.load(
            k_row[None, :] + offs_d[:, None], mask=mask_d[:, None] & mask_n[None, :], other=0.0
        )
        # [BLOCK_N, BLOCK_D]
        v = tl.load(
            v_row[:, None] + offs_d[None, :], mask=mask_n[:, None] & mask_d[None, :], other=0.0
        )
        k = dequantised(k, KV_KIND).to(q.dtype)
        v = dequantised(v, KV_KIND).to(q.dtype)
        scores = tl.dot(q, k, input_precision="tf32x3") * scale
        if HAS_CAP:
            scores = soft_capped(scores, soft_cap)
        scores = scores * LOG2_E
        if IS_MASKED:
            visible = offs_n[None, :] <= position[:, None]
            if WINDOW > 0:
                visible = visible & (offs_n[None, :] > position[:, None] - WINDOW)
            scores = tl.where(visible & mask_n[None, :], scores, float("-inf"))
        acc, row_max, row_sum = fold(scores, v, acc, row_max, row_sum)
    return acc, row_max, row_sum


@triton.jit
def attend_described(
    q,
    acc,
    row_max,
    row_sum,
    begin,
    end,
    k_desc,
    v_desc,
    kv_head,
    table_ptr,
    scale,
    soft_cap,
    BLOCK_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    KV_KIND: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """`attend_tiles` without IS_MASKED, each tile one bulk copy by a tensor descriptor.

    Descriptors: of the whole cache ``[num_blocks, BLOCK_SIZE, HK, D]``, tile [1, BLOCK_N, 1,
    BLOCK_D], zeros beyond D. BLOCK_SIZE must be a multiple of BLOCK_N, so that a tile lies in one
    block. The next block id is loaded a tile ahead: the copy that needs it must not wait.
    """
    last = tl.maximum(end - BLOCK_N, 0)
    block_id = tl.load(table_ptr + tl.minimum(begin, last) // BLOCK_SIZE)
    for start in range(begin, end, BLOCK_N):
        offset = start % BLOCK_SIZE
        # [BLOCK_N, BLOCK_D]
        k = k_desc.load([block_id, offset, kv_head, 0]).reshape(BLOCK_N, BLOCK_D)
        v = v_desc.load([block_id, offset, kv_head, 0]).reshape(BLOCK_N, BLOCK_D)
        block_id = tl.load(table_ptr + tl.minimum(start + BLOCK_N, last) // BLOCK_SIZE)
        k = dequantised(k, KV_KIND).to(q.dtype)
        v = dequantised(v, KV_KIND).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
        if HAS_CAP:
            scores = soft_capped(scores, soft_cap)
        acc, row_max, row_sum = fold(scores * LOG2_E, v, acc, row_max, row_sum)
    return acc, row_max, row_sum
