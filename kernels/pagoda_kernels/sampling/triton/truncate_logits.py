"""Truncation of rows that ask for top-n-sigma, typical-p or XTC, one program per row.

All truncation of such a row is done here, in its order, and what is dropped becomes -inf; the
kernel that samples then has only to draw. A row is read once for each pass, and sixteen times for a
threshold. Reference: `reference.sample_tokens`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.sampling.rows import SamplingRows
from pagoda_kernels.sampling.triton.probabilities import (
    FLOAT_MASS_OF_ONE,
    MASS_OF_ONE,
    OF_CLOSENESS,
    OF_ORDERS,
    OF_PROBS,
    distances_of,
    exponentials_of,
    norm_of,
    order_of,
    probs_of,
    scaled_of,
    threshold,
)
from pagoda_kernels.triton.launch import on_device_of


@triton.jit
def _best_of(row_ptr, vocab_size, BLOCK_V: tl.constexpr):
    """(the largest logit, whether no logit is a NaN and the largest is finite)."""
    offs_v = tl.arange(0, BLOCK_V)
    largest = tl.full([BLOCK_V], float("-inf"), dtype=tl.float32)
    has_nan = tl.zeros([BLOCK_V], dtype=tl.int32)
    for start in range(0, vocab_size, BLOCK_V):
        logits = distances_of(row_ptr, start + offs_v, vocab_size, 0.0)
        has_nan = has_nan | (logits != logits).to(tl.int32)
        largest = tl.where(logits > largest, logits, largest)
    best = tl.max(largest, axis=0)
    return best, (tl.max(has_nan, axis=0) == 0) & (tl.abs(best) < float("inf"))


@triton.jit
def _sigma_of(row_ptr, vocab_size, best, BLOCK_V: tl.constexpr):
    """Standard deviation of the finite logits."""
    offs_v = tl.arange(0, BLOCK_V)
    # [BLOCK_V]
    counts = tl.zeros([BLOCK_V], dtype=tl.float32)
    sums = tl.zeros([BLOCK_V], dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        distances = distances_of(row_ptr, start + offs_v, vocab_size, best)
        is_finite = distances > float("-inf")
        counts += is_finite.to(tl.float32)
        sums += tl.where(is_finite, distances, 0.0)
    count = tl.sum(counts, axis=0)
    mean = tl.sum(sums, axis=0) / count
    squares = tl.zeros([BLOCK_V], dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        distances = distances_of(row_ptr, start + offs_v, vocab_size, best)
        off_mean = tl.where(distances > float("-inf"), distances - mean, 0.0)
        squares += off_mean * off_mean
    return tl.sqrt(tl.sum(squares, axis=0) / count)


@triton.jit
def _least_closeness(
    row_ptr, vocab_size, best, temperature, lowest_order, typical_p, BLOCK_V: tl.constexpr
):
    """(mean of scaled distances, order of how far the typical ones are off it at most)."""
    offs_v = tl.arange(0, BLOCK_V)
    norm = norm_of(row_ptr, vocab_size, best, temperature, lowest_order, BLOCK_V)
    sums = tl.zeros([BLOCK_V], dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        scaled = scaled_of(row_ptr, start + offs_v, vocab_size, best, temperature)
        probs = probs_of(scaled, lowest_order, norm)
        sums += probs * tl.where(probs > 0.0, scaled, 0.0)
    mean = tl.sum(sums, axis=0)
    closeness = threshold(
        row_ptr, vocab_size, best, temperature, lowest_order, norm, mean, typical_p,
        OF_CLOSENESS, BLOCK_V,
    )  # fmt: skip
    return mean, closeness


@triton.jit
def _top_choice(
    row_ptr, vocab_size, best, temperature, norm, floor, xtc_threshold, BLOCK_V: tl.constexpr
):
    """Probability of the least likely token that reaches XTC's threshold; inf if none does."""
    offs_v = tl.arange(0, BLOCK_V)
    # [BLOCK_V]
    sums = tl.zeros([BLOCK_V], dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        scaled = scaled_of(row_ptr, start + offs_v, vocab_size, best, temperature)
        probs = probs_of(scaled, 0, norm)
        sums += tl.where(probs >= floor, probs, 0.0)
    lowest = tl.maximum(floor, xtc_threshold * tl.sum(sums, axis=0))
    least = tl.full([BLOCK_V], float("inf"), dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        scaled = scaled_of(row_ptr, start + offs_v, vocab_size, best, temperature)
        probs = probs_of(scaled, 0, norm)
        least = tl.minimum(least, tl.where(probs >= lowest, probs, float("inf")))
    return tl.min(least, axis=0)


@triton.jit(
    do_not_specialize=[
        "temperature_ptr",
        "min_p_ptr",
        "top_n_sigma_ptr",
        "xtc_threshold_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "typical_p_ptr",
        "left_k_ptr",
        "left_p_ptr",
        "left_min_p_ptr",
    ]
)
def truncate_kernel(
    logits_ptr,
    temperature_ptr,
    min_p_ptr,
    top_n_sigma_ptr,
    xtc_threshold_ptr,
    top_k_ptr,
    top_p_ptr,
    typical_p_ptr,
    out_ptr,
    left_k_ptr,
    left_p_ptr,
    left_min_p_ptr,
    vocab_size,
    stride_ls,
    BLOCK_V: tl.constexpr,
):
    """Write logits with -inf for what is dropped, and the parameters that are left to apply.

    Tile [BLOCK_V]; one program per row. Rows that ask for none of the three, are greedy or no
    distribution are copied, and all is left to apply.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride_ls
    out_row_ptr = out_ptr + row * vocab_size
    offs_v = tl.arange(0, BLOCK_V)
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    min_p = tl.load(min_p_ptr + row)
    num_sigmas = tl.load(top_n_sigma_ptr + row).to(tl.float32)
    xtc_threshold = tl.load(xtc_threshold_ptr + row).to(tl.float32)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    typical_p = tl.load(typical_p_ptr + row)

    best, is_valid = _best_of(row_ptr, vocab_size, BLOCK_V)
    asks = (num_sigmas > 0.0) | (typical_p < MASS_OF_ONE) | (xtc_threshold < 1.0)
    asks = asks & is_valid & (temperature > 0.0)
    tl.store(left_k_ptr + row, tl.where(asks, 0, top_k))
    tl.store(left_p_ptr + row, tl.where(asks, MASS_OF_ONE, top_p))
    tl.store(left_min_p_ptr + row, tl.where(asks, 0.0, min_p))
    if asks == 0:
        for start in range(0, vocab_size, BLOCK_V):
            offs = start + offs_v
            logits = distances_of(row_ptr, offs, vocab_size, 0.0)
            tl.store(out_row_ptr + offs, logits, mask=offs < vocab_size)
        return

    lowest_order = 0
    if num_sigmas > 0.0:
        sigma = _sigma_of(row_ptr, vocab_size, best, BLOCK_V)
        lowest_order = order_of(tl.div_rn(-num_sigmas * sigma, temperature))
    if (top_k > 0) & (top_k < vocab_size):
        of_top_k = threshold(
            row_ptr, vocab_size, best, temperature, 0, 1.0, 0.0, top_k.to(tl.int64),
            OF_ORDERS, BLOCK_V,
        )  # fmt: skip
        lowest_order = tl.maximum(lowest_order, of_top_k)
    mean = 0.0
    closeness = 0
    if typical_p < MASS_OF_ONE:
        mean, closeness = _least_closeness(
            row_ptr, vocab_size, best, temperature, lowest_order, typical_p, BLOCK_V
        )

    # What these leave is written, and read from there: the rest of it is -inf, likelier or not.
    largest = tl.zeros([BLOCK_V], dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        offs = start + offs_v
        scaled = scaled_of(row_ptr, offs, vocab_size, best, temperature)
        is_kept = (order_of(scaled) >= lowest_order) & (order_of(scaled - mean) >= closeness)
        logits = tl.where(is_kept, distances_of(row_ptr, offs, vocab_size, 0.0), float("-inf"))
        tl.store(out_row_ptr + offs, logits, mask=offs < vocab_size)
        largest = tl.maximum(largest, tl.where(is_kept, exponentials_of(scaled, 0), 0.0))
    tl.debug_barrier()  # threads load what others stored

    norm = norm_of(out_row_ptr, vocab_size, best, temperature, 0, BLOCK_V)
    floor = tl.div_rn(tl.max(largest, axis=0), norm) * min_p.to(tl.float32)
    floor = tl.maximum(floor, 1.0 / FLOAT_MASS_OF_ONE)  # what is less likely has no mass
    if top_p < MASS_OF_ONE:
        bits = threshold(
            out_row_ptr, vocab_size, best, temperature, 0, norm, 0.0, top_p, OF_PROBS, BLOCK_V
        )
        floor = tl.maximum(floor, bits.to(tl.float32, bitcast=True))
    ceiling = float("inf")
    if xtc_threshold < 1.0:
        ceiling = _top_choice(
            out_row_ptr, vocab_size, best, temperature, norm, floor, xtc_threshold, BLOCK_V
        )
    for start in range(0, vocab_size, BLOCK_V):
        offs = start + offs_v
        scaled = scaled_of(out_row_ptr, offs, vocab_size, best, temperature)
        probs = probs_of(scaled, 0, norm)
        is_dropped = (probs < floor) | (probs > ceiling)
        tl.store(out_row_ptr + offs, float("-inf"), mask=is_dropped & (offs < vocab_size))


def truncate_logits(
    logits: torch.Tensor, rows: SamplingRows, block_v: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch one program per row.

    Args:
        logits: ``[S, V]``; rows dense. Unchanged.
        rows: on the device of logits.
        block_v: tokens in a tile.

    Returns:
        New contiguous ``[S, V]`` fp32, and what is left to apply: top-k, top-p and min-p.
    """
    num_rows, vocab_size = logits.shape
    out = torch.empty((num_rows, vocab_size), dtype=torch.float32, device=logits.device)
    left_k, left_p = torch.empty_like(rows.top_k), torch.empty_like(rows.top_p)
    left_min_p = torch.empty_like(rows.min_p)
    with on_device_of(logits):
        truncate_kernel[(num_rows,)](
            logits,
            rows.temperature,
            rows.min_p,
            rows.top_n_sigma,
            rows.xtc_threshold,
            rows.top_k,
            rows.top_p,
            rows.typical_p,
            out,
            left_k,
            left_p,
            left_min_p,
            vocab_size,
            logits.stride(0),
            BLOCK_V=block_v,
            num_warps=16,
        )
    return out, left_k, left_p, left_min_p
