"""The inner loop both attention kernels share: online softmax over tiles of paged KV.

Knows one sequence's block table and one KV head. Knows nothing of grids or splits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.one_byte_tiles import PLAIN, dequantised

NO_SCORE: tl.constexpr = tl.constexpr(-1.0e30)
"""Running maximum before any key was seen: finite, so that tiles hidden from a row make no NaN."""

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)

LEAST_FACTOR: tl.constexpr = tl.constexpr(1.0e-30)
"""Of scores: with 0, minus infinity, which hides a key, would become NaN."""


@triton.jit
def soft_capped(scores, scale, soft_cap):
    """``soft_cap * tanh(scale * scores / soft_cap)``, scale [M], by an exponential and a quotient.

    Triton has no tanh outside libdevice.
    """
    factor = scale * LOG2_E * 2.0 / soft_cap
    return soft_cap - 2.0 * soft_cap / (tl.exp2(scores * factor[:, None]) + 1.0)


@triton.jit
def attended(acc, row_sum):
    """``acc / row_sum``, and 0 for rows that saw no key (rows of a tile that are no token)."""
    return acc / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]


@triton.jit
def initial_rows(sink_ptr, head, mask, is_first, HAS_SINKS: tl.constexpr, BLOCK_M: tl.constexpr):
    """(row_max, row_sum) before any key: nothing seen, or the sink of each row's head.

    The sink counts once, where `is_first`; one of minus infinity counts nothing.
    """
    row_max = tl.full([BLOCK_M], NO_SCORE, dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    if HAS_SINKS:
        # [BLOCK_M]
        sink = tl.load(sink_ptr + head, mask=mask, other=0.0).to(tl.float32)
        row_max = tl.where(is_first, tl.maximum(sink, NO_SCORE) * LOG2_E, row_max)
        row_sum = tl.where(is_first, 1.0, row_sum)
    return row_max, row_sum


@triton.jit
def with_distances(scores, scale, slope, position, offs_n, HAS_CAP: tl.constexpr):
    """Scaled scores [M, N] plus ``slope * (offs_n - position)``: ALiBi, slope and position [M]."""
    if not HAS_CAP:
        scores = scores * scale[:, None]
    return scores + slope[:, None] * (offs_n[None, :] - position[:, None]).to(tl.float32)


@triton.jit
def row_slopes(slope_ptr, head, mask, HAS_SLOPES: tl.constexpr, BLOCK_M: tl.constexpr):
    """Slope of each row's head, [BLOCK_M]."""
    slope = tl.zeros([BLOCK_M], dtype=tl.float32)
    if HAS_SLOPES:
        # [BLOCK_M]
        slope = tl.load(slope_ptr + head, mask=mask, other=0.0)
    return slope


@triton.jit
def score_factor(scale, IS_SCALED: tl.constexpr):
    """What takes scores to units of log2, [M] as `scale`; capped ones are scaled already."""
    factor = tl.maximum(scale * LOG2_E, LEAST_FACTOR)
    if IS_SCALED:
        factor = tl.zeros_like(scale) + LOG2_E
    return factor


@triton.jit
def fold(scores, factor, v, acc, row_max, row_sum):
    """``m' = max(m, f * s)``, ``acc' = acc * 2^(m - m') + 2^(f * s - m') @ v``, row_sum alike.

    `factor` f [M], > 0, so that the product and the difference are one instruction.
    """
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * factor)
    kept = tl.exp2(row_max - new_max)
    weights = tl.exp2(scores * factor[:, None] - new_max[:, None])
    row_sum = row_sum * kept + tl.sum(weights, axis=1)
    acc = acc * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="tf32x3")
    return acc, new_max, row_sum


@triton.jit
def query_operand(q, scale, KV_KIND: tl.constexpr, UPCAST: tl.constexpr):
    """(q as products take it, scale of its rows [M]).

    One-byte KV widens to fp16 in fewer instructions than to bf16. Taking a power of two out of
    each row of a bf16 q makes it fp16 without loss, but for what is below 2^-22 of the largest.
    """
    row_scale = tl.zeros([q.shape[0]], dtype=tl.float32) + scale
    if KV_KIND != PLAIN and q.dtype == tl.bfloat16:
        wide = q.to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(wide), axis=1), 1.0e-18)  # a row of zeros has no power
        power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        q = (wide / power[:, None]).to(tl.float16)
        row_scale = row_scale * power
    elif UPCAST:
        q = q.to(tl.float32)
    return q, row_scale


@triton.jit
def tile_places(table_ptr, start, mask_n, IS_MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
                BLOCK_N: tl.constexpr):  # fmt: skip
    """(block id, offset in the block) of BLOCK_N keys from `start`, a multiple of BLOCK_N.

    Offsets that repeat with every tile depend on no loop variable, so they are computed once and
    kept in registers; not so in masked loops, which few tiles take.
    """
    within = tl.arange(0, BLOCK_N)
    if BLOCK_N % BLOCK_SIZE == 0 and not IS_MASKED:
        index = start // BLOCK_SIZE + within // BLOCK_SIZE
        offset = within % BLOCK_SIZE
    else:
        index = (start + within) // BLOCK_SIZE
        if BLOCK_SIZE % BLOCK_N == 0:
            offset = start % BLOCK_SIZE + within
        else:
            offset = (start + within) % BLOCK_SIZE
    if IS_MASKED:
        block_id = tl.load(table_ptr + index, mask=mask_n, other=0)
    else:
        block_id = tl.load(table_ptr + index)
    return block_id.to(tl.int64), offset


@triton.jit
def load_rows(row_ptr, at, offs_d, mask_n, IS_MASKED: tl.constexpr, HEAD_DIM: tl.constexpr,
              BLOCK_D: tl.constexpr):  # fmt: skip
    """Rows of K or V, [BLOCK_N, BLOCK_D], zeros beyond HEAD_DIM and, if IS_MASKED, `mask_n`."""
    ptr = row_ptr[:, None] + (at[:, None] + offs_d[None, :])
    if IS_MASKED:
        rows = tl.load(ptr, mask=mask_n[:, None] & (offs_d < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM < BLOCK_D:
        rows = tl.load(ptr, mask=(offs_d < HEAD_DIM)[None, :], other=0.0)
    else:
        rows = tl.load(ptr)
    return rows


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
    scale,
    soft_cap,
    slope,
    STRIDE_KB: tl.constexpr,
    STRIDE_KT: tl.constexpr,
    STRIDE_VB: tl.constexpr,
    STRIDE_VT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    IS_MASKED: tl.constexpr,
    KV_KIND: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """`fold` keys ``[begin, end)`` into ``(acc, row_max, row_sum)``; scores in units of log2.

    Tiles: q [M, BLOCK_D], acc [M, BLOCK_D] fp32, row_max, row_sum, position, scale and slope [M];
    q and scale from `query_operand`. `begin` is a multiple of BLOCK_N. A row sees keys up to its
    position and, if WINDOW > 0, the last WINDOW of those; keys that no row sees are not read, since
    blocks behind the window may be somebody else's. Without IS_MASKED all rows must see all
    keys and `end` be a multiple of BLOCK_N too. `k_ptr`, `v_ptr`: of the KV head; a block is dense.
    Strides are compiled in: they are those of the pool for the life of a process, and an address is
    then one multiplication. Keys and values are taken to the dtype of q. Products of fp32 are three
    of tf32, which keeps fp32 accuracy on tensor cores.
    """
    factor = score_factor(scale, HAS_CAP or HAS_SLOPES)
    offs_d = tl.arange(0, BLOCK_D)
    first_seen = begin
    if WINDOW > 0:
        first_seen = tl.min(position, axis=0) - (WINDOW - 1)
    for start in range(begin, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_n = offs_n < end
        if WINDOW > 0:
            mask_n = mask_n & (offs_n >= first_seen)
        # [BLOCK_N]
        block_id, offset = tile_places(table_ptr, start, mask_n, IS_MASKED, BLOCK_SIZE, BLOCK_N)
        k_row = k_ptr + block_id * STRIDE_KB
        v_row = v_ptr + block_id * STRIDE_VB
        # [BLOCK_N, BLOCK_D]
        k = load_rows(k_row, offset * STRIDE_KT, offs_d, mask_n, IS_MASKED, HEAD_DIM, BLOCK_D)
        v = load_rows(v_row, offset * STRIDE_VT, offs_d, mask_n, IS_MASKED, HEAD_DIM, BLOCK_D)
        k = dequantised(k, KV_KIND).to(q.dtype)
        v = dequantised(v, KV_KIND).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3")
        if HAS_CAP:
            scores = soft_capped(scores, scale, soft_cap)
        if HAS_SLOPES:
            scores = with_distances(scores, scale, slope, position, offs_n, HAS_CAP)
        if IS_MASKED:
            visible = offs_n[None, :] <= position[:, None]
            if WINDOW > 0:
                visible = visible & (offs_n[None, :] > position[:, None] - WINDOW)
            scores = tl.where(visible & mask_n[None, :], scores, float("-inf"))
        acc, row_max, row_sum = fold(scores, factor, v, acc, row_max, row_sum)
    return acc, row_max, row_sum


@triton.jit
def attend_described(
    q,
    acc,
    row_max,
    row_sum,
    position,
    begin,
    end,
    k_desc,
    v_desc,
    kv_head,
    table_ptr,
    scale,
    soft_cap,
    slope,
    BLOCK_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    KV_KIND: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """`attend_tiles` without IS_MASKED, each tile one bulk copy by a tensor descriptor.

    Descriptors: of the whole cache ``[num_blocks, BLOCK_SIZE, HK, D]``, tile [1, BLOCK_N, 1,
    BLOCK_D], zeros beyond D. BLOCK_SIZE must be a multiple of BLOCK_N, so that a tile lies in one
    block. The next block id is loaded a tile ahead: the copy that needs it must not wait.
    """
    factor = score_factor(scale, HAS_CAP or HAS_SLOPES)
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
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3")
        if HAS_CAP:
            scores = soft_capped(scores, scale, soft_cap)
        if HAS_SLOPES:
            offs_n = start + tl.arange(0, BLOCK_N)
            scores = with_distances(scores, scale, slope, position, offs_n, HAS_CAP)
        acc, row_max, row_sum = fold(scores, factor, v, acc, row_max, row_sum)
    return acc, row_max, row_sum


def cache_strides(k_cache: torch.Tensor, v_cache: torch.Tensor) -> dict[str, int]:
    """Distances of blocks, tokens and heads in K and V, as kernels that call `attend_tiles`."""
    return {
        f"STRIDE_{name}{of}": stride
        for name, cache in (("K", k_cache), ("V", v_cache))
        for of, stride in zip("BTH", cache.stride(), strict=False)
    }
