"""Sampling, one program per row. Reference: `reference.sample_tokens`.

A row is read once for each pass; a vocabulary's row stays in the L2 cache between them. Thresholds
would take sixteen passes, so the likeliest tokens are gathered first, a tile of them and, if they
do not tell, some tiles: mostly they are enough. Rows with top-n-sigma, typical-p or XTC are
truncated by a kernel of their own before.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.sampling.rows import SamplingRows
from pagoda_kernels.sampling.triton.probabilities import (
    BITS_OF_INF,
    MASS_OF_ONE,
    OF_ORDERS,
    OF_PROBS,
    distances_of,
    exponentials_of,
    masses_of,
    norm_of,
    order_of,
    probs_of,
    scaled_of,
    target_of,
    threshold,
    tile_threshold,
)
from pagoda_kernels.sampling.triton.truncate_logits import truncate_logits
from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

BLOCK_V = 2048
"""With 16 warps a tile's sums stay in 128 registers; a row has a processor to itself."""

NUM_TILES = 4
"""Of likely tokens that are gathered where one does not tell."""

NUM_RUNS: tl.constexpr = tl.constexpr(8)
"""Runs of tiles whose masses are added up apart, so that a draw walks the tiles of one."""


@triton.jit
def _gathered(
    row_ptr, vocab_size, best, least_order, distance_ptr, candidate_ptr,
    CAPACITY: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Write distances and tokens of this order or above, as they come; returns their number.

    Only CAPACITY of them are written.
    """
    tl.debug_barrier()  # threads may still load what was gathered before
    count = 0
    for start in range(0, vocab_size, 2 * BLOCK_V):  # few turns, since all threads meet in each
        # [2 BLOCK_V]
        offs = start + tl.arange(0, 2 * BLOCK_V)
        distances = distances_of(row_ptr, offs, vocab_size, best)
        is_wanted = (order_of(distances) >= least_order).to(tl.int32)
        num_wanted = tl.sum(is_wanted, axis=0)
        if num_wanted > 0:
            at = count + tl.cumsum(is_wanted, axis=0) - 1
            mask = (is_wanted != 0) & (at < CAPACITY)
            tl.store(distance_ptr + at, distances, mask=mask)
            tl.store(candidate_ptr + at, offs, mask=mask)
            count += num_wanted
    tl.debug_barrier()  # threads load what others stored
    return count


@triton.jit
def _drawn_of_likeliest(
    row_ptr, vocab_size, best, temperature, of_parts, norm, top_k, top_p, min_p, seed, index,
    distance_ptr, candidate_ptr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The token if the likeliest tell, else -1. Top-k or top-p must be asked.

    `of_parts` [BLOCK_V] are the orders of the largest logits of as many parts of the vocabulary.
    What half of them reach is reached by somewhat more tokens than these, so they are likely to fit
    a tile. They tell if the thresholds are above the least of them: what was left out is at most as
    likely. `norm` is the row's where no top-k is asked.
    """
    offs_v = tl.arange(0, BLOCK_V)
    reached_by_half = tile_threshold(of_parts, tl.full([BLOCK_V], 1, tl.int64), BLOCK_V // 2)
    is_all = reached_by_half <= 1  # but of order 0, which cannot be drawn
    count = _gathered(
        row_ptr, vocab_size, best, tl.maximum(reached_by_half, 1), distance_ptr, candidate_ptr,
        BLOCK_V, BLOCK_V,
    )  # fmt: skip
    tells = count <= BLOCK_V
    # [BLOCK_V]
    mask = offs_v < count
    distances = tl.load(distance_ptr + offs_v, mask=mask, other=float("-inf"))
    scaled = tl.div_rn(distances, temperature)
    lowest_order = 0
    if (top_k > 0) & (top_k < vocab_size):
        order = order_of(scaled)
        lowest_order = tile_threshold(order, mask.to(tl.int64), top_k.to(tl.int64))
        least = tl.min(tl.where(mask, order, BITS_OF_INF), axis=0)
        is_all |= lowest_order > least  # of what top-k keeps
        tells &= is_all
        norm = tl.sum(exponentials_of(scaled, lowest_order), axis=0)
    probs = probs_of(scaled, lowest_order, norm)
    floor = tl.div_rn(1.0, norm) * min_p
    if top_p < MASS_OF_ONE:
        bits = probs.to(tl.int32, bitcast=True)
        lowest_bits = tile_threshold(bits, masses_of(probs, 0.0), top_p)
        least = tl.min(tl.where(mask, bits, BITS_OF_INF), axis=0)
        tells &= is_all | (lowest_bits > least)
        floor = tl.maximum(floor, lowest_bits.to(tl.float32, bitcast=True))
    masses = masses_of(probs, floor)
    target = target_of(seed, index, tl.sum(masses, axis=0))
    place = tl.sum((tl.cumsum(masses, axis=0) <= target).to(tl.int32), axis=0)
    return tl.load(candidate_ptr + tl.minimum(place, count - 1), mask=tells, other=-1)


@triton.jit
def _cuts(
    row_ptr, size, best, temperature, norm, has_top_k, top_k, top_p, min_p, BLOCK_V: tl.constexpr
):
    """(lowest order that top-k keeps, norm, bits that top-p wants, floor of the probabilities).

    Of a row, or of the likely tokens of one: `norm` is the row's where no top-k is asked.
    """
    lowest_order = 0
    if has_top_k:
        lowest_order = threshold(
            row_ptr, size, best, temperature, 0, 1.0, 0.0, top_k.to(tl.int64), OF_ORDERS, BLOCK_V
        )
        norm = norm_of(row_ptr, size, best, temperature, lowest_order, BLOCK_V)
    # The likeliest has exp(0) / norm.
    floor = tl.div_rn(1.0, norm) * min_p
    bits = 0
    if top_p < MASS_OF_ONE:
        bits = threshold(
            row_ptr, size, best, temperature, lowest_order, norm, 0.0, top_p, OF_PROBS, BLOCK_V
        )
        floor = tl.maximum(floor, bits.to(tl.float32, bitcast=True))
    return lowest_order, norm, bits, floor


@triton.jit
def _drawn_place(
    row_ptr, size, best, temperature, lowest_order, norm, floor, seed, index, BLOCK_V: tl.constexpr
):
    """Index of the first whose cumulative mass exceeds ``uniform * total``."""
    offs_v = tl.arange(0, BLOCK_V)
    offs_r = tl.arange(0, NUM_RUNS)
    run_size = tl.cdiv(size, NUM_RUNS * BLOCK_V) * BLOCK_V
    # [NUM_RUNS]
    masses_of_runs = tl.zeros([NUM_RUNS], dtype=tl.int64)
    for run in range(NUM_RUNS):
        totals = tl.zeros([BLOCK_V], dtype=tl.int64)
        for start in range(run * run_size, tl.minimum((run + 1) * run_size, size), BLOCK_V):
            scaled = scaled_of(row_ptr, start + offs_v, size, best, temperature)
            totals += masses_of(probs_of(scaled, lowest_order, norm), floor)
        masses_of_runs = tl.where(offs_r == run, tl.sum(totals, axis=0), masses_of_runs)
    target = target_of(seed, index, tl.sum(masses_of_runs, axis=0))

    drawn_run = tl.sum((tl.cumsum(masses_of_runs, axis=0) <= target).to(tl.int32), axis=0)
    below = tl.sum(tl.where(offs_r < drawn_run, masses_of_runs, 0), axis=0)
    start = drawn_run * run_size
    scaled = scaled_of(row_ptr, start + offs_v, size, best, temperature)
    masses = masses_of(probs_of(scaled, lowest_order, norm), floor)
    in_tile = tl.sum(masses, axis=0)
    while (below + in_tile <= target) & (start + BLOCK_V < size):
        below += in_tile
        start += BLOCK_V
        scaled = scaled_of(row_ptr, start + offs_v, size, best, temperature)
        masses = masses_of(probs_of(scaled, lowest_order, norm), floor)
        in_tile = tl.sum(masses, axis=0)
    cdf = below + tl.cumsum(masses, axis=0)
    place = start + tl.sum((cdf <= target).to(tl.int32), axis=0)
    return tl.minimum(place, size - 1)


@triton.jit
def _drawn_of_likely(
    row_ptr, vocab_size, best, temperature, of_parts, norm, has_top_k, top_k, top_p, min_p, seed,
    index, distance_ptr, candidate_ptr, NUM_TILES: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """`_drawn_of_likeliest` of what nearly all parts reach: three and a half tiles of tokens."""
    reached = tile_threshold(
        of_parts, tl.full([BLOCK_V], 1, tl.int64), BLOCK_V - (BLOCK_V + 31) // 32
    )
    least_order = tl.maximum(reached, 1)
    count = _gathered(
        row_ptr, vocab_size, best, least_order, distance_ptr, candidate_ptr, NUM_TILES * BLOCK_V,
        BLOCK_V,
    )  # fmt: skip
    drawn = tl.full([], -1, tl.int32)
    if count <= NUM_TILES * BLOCK_V:
        lowest_order, norm, bits, floor = _cuts(
            distance_ptr, count, 0.0, temperature, norm, has_top_k, top_k, top_p, min_p, BLOCK_V
        )
        # As likely as this is what was left out at most.
        least = -(-least_order + BITS_OF_INF).to(tl.float32, bitcast=True)
        of_least = tl.div_rn(least, temperature)
        bits_of_least = probs_of(of_least, 0, norm).to(tl.int32, bitcast=True)
        if tl.where(has_top_k, lowest_order > order_of(of_least), bits > bits_of_least):
            place = _drawn_place(
                distance_ptr, count, 0.0, temperature, lowest_order, norm, floor, seed, index,
                BLOCK_V,
            )  # fmt: skip
            drawn = tl.load(candidate_ptr + place)
    return drawn


@triton.jit(
    do_not_specialize=[
        "temperature_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "min_p_ptr",
        "seed_ptr",
        "index_ptr",
        "distance_ptr",
        "candidate_ptr",
    ]
)
def sample_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    index_ptr,
    distance_ptr,
    candidate_ptr,
    token_ptr,
    valid_ptr,
    vocab_size,
    stride_ls,
    NUM_TILES: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Greedy, or the first token whose cumulative mass exceeds ``uniform * total``.

    Tile [BLOCK_V]; one program per row. If top-k or top-p are asked, `_drawn_of_likeliest` tells in
    two or three passes, or `_drawn_of_likely` in two more; distance and candidate
    [S, NUM_TILES * BLOCK_V] are for what they gather. Else, or if they do not: best, top-k
    threshold, norm, top-p threshold, total, draw; what a row does not ask is skipped.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride_ls
    offs_v = tl.arange(0, BLOCK_V)

    # [BLOCK_V]
    largest = tl.full([BLOCK_V], float("-inf"), dtype=tl.float32)
    largest_at = tl.zeros([BLOCK_V], dtype=tl.int32)
    has_nan = tl.zeros([BLOCK_V], dtype=tl.int32)
    for start in range(0, vocab_size, BLOCK_V):
        offs = start + offs_v
        logits = tl.load(row_ptr + offs, mask=offs < vocab_size, other=float("-inf"))
        logits = logits.to(tl.float32)
        has_nan = has_nan | (logits != logits).to(tl.int32)
        is_larger = logits > largest
        largest = tl.where(is_larger, logits, largest)
        largest_at = tl.where(is_larger, offs, largest_at)
    best = tl.max(largest, axis=0)
    best_at = tl.min(tl.where(largest == best, largest_at, vocab_size), axis=0)
    is_valid = (tl.max(has_nan, axis=0) == 0) & (tl.abs(best) < float("inf"))
    tl.store(valid_ptr + row, is_valid.to(tl.int8))
    tl.store(token_ptr + row, tl.where(is_valid, best_at, 0).to(tl.int64))
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    if (temperature == 0.0) | (is_valid == 0):
        return

    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row).to(tl.float32)
    seed = tl.load(seed_ptr + row)
    index = tl.load(index_ptr + row)
    has_top_k = (top_k > 0) & (top_k < vocab_size)
    norm = 1.0
    if has_top_k == 0:
        norm = norm_of(row_ptr, vocab_size, best, temperature, 0, BLOCK_V)
    drawn = tl.full([], -1, tl.int32)
    if has_top_k | (top_p < MASS_OF_ONE):
        distance_ptr += row * NUM_TILES * BLOCK_V
        candidate_ptr += row * NUM_TILES * BLOCK_V
        of_parts = order_of(largest - best)
        drawn = _drawn_of_likeliest(
            row_ptr, vocab_size, best, temperature, of_parts, norm, top_k, top_p, min_p, seed,
            index, distance_ptr, candidate_ptr, BLOCK_V,
        )  # fmt: skip
        if drawn < 0:
            drawn = _drawn_of_likely(
                row_ptr, vocab_size, best, temperature, of_parts, norm, has_top_k, top_k, top_p,
                min_p, seed, index, distance_ptr, candidate_ptr, NUM_TILES, BLOCK_V,
            )  # fmt: skip
    if drawn < 0:
        lowest_order, norm, _, floor = _cuts(
            row_ptr, vocab_size, best, temperature, norm, has_top_k, top_k, top_p, min_p, BLOCK_V
        )
        drawn = _drawn_place(
            row_ptr, vocab_size, best, temperature, lowest_order, norm, floor, seed, index, BLOCK_V
        )
    tl.store(token_ptr + row, drawn.to(tl.int64))


def sample_tokens(logits: torch.Tensor, rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch one program per row; arguments as the operator."""
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_valid = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows == 0:
        return token_ids, is_valid
    block_v = min(BLOCK_V, max(16, next_power_of_2(vocab_size)))
    top_k, top_p, min_p = rows.top_k, rows.top_p, rows.min_p
    if rows.truncates_more:
        logits, top_k, top_p, min_p = truncate_logits(logits, rows, block_v)
    gathered = num_rows, NUM_TILES * block_v
    distances = torch.empty(gathered, dtype=torch.float32, device=logits.device)
    candidates = torch.empty(gathered, dtype=torch.int32, device=logits.device)
    with on_device_of(logits):
        sample_kernel[(num_rows,)](
            logits,
            rows.temperature,
            top_k,
            top_p,
            min_p,
            rows.seeds,
            rows.indices,
            distances,
            candidates,
            token_ids,
            is_valid.view(torch.int8),
            vocab_size,
            logits.stride(0),
            NUM_TILES=NUM_TILES,
            BLOCK_V=block_v,
            num_warps=16,
        )
    return token_ids, is_valid
