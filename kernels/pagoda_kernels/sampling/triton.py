"""Sampling, one program per row. Reference: `reference`.

A row is read once for each pass; a vocabulary's row stays in the L2 cache between them. Thresholds
would take sixteen passes, so the likeliest tokens are gathered first: mostly they are enough.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.sampling import rows as sampling_rows
from pagoda_kernels.sampling.rows import SamplingRows
from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

BLOCK_V = 2048
"""With 16 warps a tile's sums stay in 128 registers; a row has a processor to itself."""

PENALTY_BLOCK_V = 4096

NUM_RUNS: tl.constexpr = tl.constexpr(8)
"""Runs of tiles whose masses are added up apart, so that a draw walks the tiles of one."""

MASS_OF_ONE: tl.constexpr = tl.constexpr(sampling_rows.MASS_ONE)
FLOAT_MASS_OF_ONE: tl.constexpr = tl.constexpr(float(sampling_rows.MASS_ONE))

BITS_OF_INF: tl.constexpr = tl.constexpr(0x7F800000)


@triton.jit
def _distances(row_ptr, offs, vocab_size, best):
    """Of logits to the best one, <= 0; -inf beyond the vocabulary."""
    logits = tl.load(row_ptr + offs, mask=offs < vocab_size, other=float("-inf")).to(tl.float32)
    return logits - best


@triton.jit
def _scaled(row_ptr, offs, vocab_size, best, temperature):
    """Distances to the best logit in units of the temperature."""
    return tl.div_rn(_distances(row_ptr, offs, vocab_size, best), temperature)


@triton.jit
def _order(distances):
    """Integers >= 0 in the order of distances, scaled or not, which are <= 0; 0 for -inf."""
    return -tl.abs(distances).to(tl.int32, bitcast=True) + BITS_OF_INF


@triton.jit
def _exponentials(scaled, lowest_order):
    """Of what top-k kept, 0 of the rest."""
    return tl.where(_order(scaled) >= lowest_order, tl.exp(scaled), 0.0)


@triton.jit
def _probs(scaled, lowest_order, norm):
    """Probabilities of what top-k kept, 0 of the rest."""
    return tl.div_rn(_exponentials(scaled, lowest_order), norm)


@triton.jit
def _masses(probs, floor):
    """Integer masses of the probabilities from `floor` on."""
    return tl.where(probs >= floor, probs * FLOAT_MASS_OF_ONE, 0.0).to(tl.int64)


@triton.jit
def _reached(key, weight, found, shift):
    """Weight [BLOCK_V, 4] of what is at or above `found` with each value of its next two bits."""
    candidates = found + (tl.arange(0, 4) << shift)
    return tl.where(key[:, None] >= candidates[None, :], weight[:, None], 0)


@triton.jit
def _extended(found, shift, weights, wanted):
    """`found` with the largest next two bits whose weights [BLOCK_V, 4] add up to `wanted`."""
    digits = tl.arange(0, 4)
    is_enough = tl.sum(weights, axis=0) >= wanted
    has_fit = found + (digits << shift) >= found  # none overflowed
    return found + (tl.max(tl.where(is_enough & has_fit, digits, 0), axis=0) << shift)


@triton.jit
def _tile_threshold(key, weight, wanted):
    """Largest integer x so that keys at or above x weigh at least `wanted`; 0 if none does.

    Tiles key int32 >= 0 and weight int64, [BLOCK_V].
    """
    found = 0
    for step in range(16):
        shift = 30 - 2 * step
        found = _extended(found, shift, _reached(key, weight, found, shift), wanted)
    return found


@triton.jit
def _threshold(
    row_ptr, vocab_size, best, temperature, lowest_order, norm, wanted,
    OF_PROBS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """`_tile_threshold` of a row, two bits in a pass.

    Of orders, each token weighing 1, or of the bits of probabilities, weighing their mass.
    """
    offs_v = tl.arange(0, BLOCK_V)
    found = 0
    for step in range(16):
        shift = 30 - 2 * step
        # [BLOCK_V, 4]
        weights = tl.zeros([BLOCK_V, 4], dtype=tl.int64)
        for start in range(0, vocab_size, BLOCK_V):
            offs = start + offs_v
            scaled = _scaled(row_ptr, offs, vocab_size, best, temperature)
            if OF_PROBS:
                probs = _probs(scaled, lowest_order, norm)
                key = probs.to(tl.int32, bitcast=True)
                weight = _masses(probs, 0.0)
            else:
                key = _order(scaled)
                weight = (offs < vocab_size).to(tl.int64)
            weights += _reached(key, weight, found, shift)
        found = _extended(found, shift, weights, wanted)
    return found


@triton.jit
def _philox_mantissa(seed, index):
    """First two words of Philox4x32-10 at counter (index, 0, 0, 0) as an integer below 2**53."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0 = index.to(tl.uint32)
    c1 = c0 ^ c0
    c2 = c1
    c3 = c1
    for _ in tl.static_range(10):
        high0 = tl.umulhi(c0, tl.full([], 0xD2511F53, tl.uint32))
        low0 = c0 * tl.full([], 0xD2511F53, tl.uint32)
        high1 = tl.umulhi(c2, tl.full([], 0xCD9E8D57, tl.uint32))
        low1 = c2 * tl.full([], 0xCD9E8D57, tl.uint32)
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + tl.full([], 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full([], 0xBB67AE85, tl.uint32)
    return ((c0 >> 5).to(tl.uint64) << 26) | (c1 >> 6).to(tl.uint64)


@triton.jit
def _gathered(
    row_ptr, vocab_size, best, least_order, distance_ptr, candidate_ptr, BLOCK_V: tl.constexpr
):
    """Write distances and tokens of this order or above, as they come; returns their number.

    Only BLOCK_V of them are written.
    """
    count = 0
    for start in range(0, vocab_size, 2 * BLOCK_V):  # few turns, since all threads meet in each
        # [2 BLOCK_V]
        offs = start + tl.arange(0, 2 * BLOCK_V)
        distances = _distances(row_ptr, offs, vocab_size, best)
        is_wanted = (_order(distances) >= least_order).to(tl.int32)
        num_wanted = tl.sum(is_wanted, axis=0)
        if num_wanted > 0:
            at = count + tl.cumsum(is_wanted, axis=0) - 1
            mask = (is_wanted != 0) & (at < BLOCK_V)
            tl.store(distance_ptr + at, distances, mask=mask)
            tl.store(candidate_ptr + at, offs, mask=mask)
            count += num_wanted
    tl.debug_barrier()  # threads load what others stored
    return count


@triton.jit
def _norm(row_ptr, vocab_size, best, temperature, lowest_order, BLOCK_V: tl.constexpr):
    """Sum of the exponentials of what top-k kept."""
    offs_v = tl.arange(0, BLOCK_V)
    sums = tl.zeros([BLOCK_V], dtype=tl.float32)
    # [BLOCK_V], loaded a tile ahead: a division, being a branch, holds up what follows
    distances = _distances(row_ptr, offs_v, vocab_size, best)
    for start in range(BLOCK_V, vocab_size + BLOCK_V, BLOCK_V):
        next_distances = _distances(row_ptr, start + offs_v, vocab_size, best)
        sums += _exponentials(tl.div_rn(distances, temperature), lowest_order)
        distances = next_distances
    return tl.sum(sums, axis=0)


@triton.jit
def _target(seed, index, total):
    """Mass below which the drawn token does not reach: ``uniform * total``, rounded down."""
    return tl.umulhi(_philox_mantissa(seed, index) << 11, total.to(tl.uint64)).to(tl.int64)


@triton.jit
def _drawn_of_likeliest(
    row_ptr, vocab_size, best, temperature, largest, top_k, top_p, min_p, seed, index,
    distance_ptr, candidate_ptr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The token if the likeliest tell, else -1. Top-k or top-p must be asked.

    `largest` [BLOCK_V] are the largest logits of as many parts of the vocabulary. What half of them
    reach is reached by somewhat more tokens than these, so they are likely to fit a tile. They tell
    if the thresholds are above the least of them: what was left out is at most as likely.
    """
    offs_v = tl.arange(0, BLOCK_V)
    of_parts = _order(largest - best)
    reached_by_half = _tile_threshold(of_parts, tl.full([BLOCK_V], 1, tl.int64), BLOCK_V // 2)
    is_all = reached_by_half <= 1  # but of order 0, which cannot be drawn
    count = _gathered(
        row_ptr, vocab_size, best, tl.maximum(reached_by_half, 1), distance_ptr, candidate_ptr,
        BLOCK_V,
    )  # fmt: skip
    tells = count <= BLOCK_V
    # [BLOCK_V]
    mask = offs_v < count
    distances = tl.load(distance_ptr + offs_v, mask=mask, other=float("-inf"))
    scaled = tl.div_rn(distances, temperature)
    lowest_order = 0
    norm = 1.0
    if (top_k > 0) & (top_k < vocab_size):
        order = _order(scaled)
        lowest_order = _tile_threshold(order, mask.to(tl.int64), top_k.to(tl.int64))
        least = tl.min(tl.where(mask, order, BITS_OF_INF), axis=0)
        is_all |= lowest_order > least  # of what top-k keeps
        tells &= is_all
        norm = tl.sum(_exponentials(scaled, lowest_order), axis=0)
    elif tells:
        norm = _norm(row_ptr, vocab_size, best, temperature, 0, BLOCK_V)
    probs = _probs(scaled, lowest_order, norm)
    floor = tl.div_rn(1.0, norm) * min_p
    if top_p < MASS_OF_ONE:
        bits = probs.to(tl.int32, bitcast=True)
        lowest_bits = _tile_threshold(bits, _masses(probs, 0.0), top_p)
        least = tl.min(tl.where(mask, bits, BITS_OF_INF), axis=0)
        tells &= is_all | (lowest_bits > least)
        floor = tl.maximum(floor, lowest_bits.to(tl.float32, bitcast=True))
    masses = _masses(probs, floor)
    target = _target(seed, index, tl.sum(masses, axis=0))
    place = tl.sum((tl.cumsum(masses, axis=0) <= target).to(tl.int32), axis=0)
    return tl.load(candidate_ptr + tl.minimum(place, count - 1), mask=tells, other=-1)


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
    BLOCK_V: tl.constexpr,
):
    """Greedy, or the first token whose cumulative mass exceeds ``uniform * total``.

    Tile [BLOCK_V]; one program per row. If top-k or top-p are asked, `_drawn_of_likeliest` tells in
    two or three passes; distance and candidate [S, BLOCK_V] are for what it gathers. Else, or if it
    does not: best, top-k threshold, norm, top-p threshold, total, draw; what a row does not ask is
    skipped.
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
    drawn = tl.full([], -1, tl.int32)
    if has_top_k | (top_p < MASS_OF_ONE):
        drawn = _drawn_of_likeliest(
            row_ptr, vocab_size, best, temperature, largest, top_k, top_p, min_p, seed, index,
            distance_ptr + row * BLOCK_V, candidate_ptr + row * BLOCK_V, BLOCK_V,
        )  # fmt: skip
    if drawn >= 0:
        tl.store(token_ptr + row, drawn.to(tl.int64))
        return

    lowest_order = 0
    if has_top_k:
        lowest_order = _threshold(
            row_ptr, vocab_size, best, temperature, 0, 1.0, top_k.to(tl.int64), False, BLOCK_V
        )
    norm = _norm(row_ptr, vocab_size, best, temperature, lowest_order, BLOCK_V)

    # The likeliest has exp(0) / norm.
    floor = tl.div_rn(1.0, norm) * min_p
    if top_p < MASS_OF_ONE:
        bits = _threshold(
            row_ptr, vocab_size, best, temperature, lowest_order, norm, top_p, True, BLOCK_V
        )
        floor = tl.maximum(floor, bits.to(tl.float32, bitcast=True))

    offs_r = tl.arange(0, NUM_RUNS)
    run_size = tl.cdiv(vocab_size, NUM_RUNS * BLOCK_V) * BLOCK_V
    # [NUM_RUNS]
    masses_of_runs = tl.zeros([NUM_RUNS], dtype=tl.int64)
    for run in range(NUM_RUNS):
        totals = tl.zeros([BLOCK_V], dtype=tl.int64)
        for start in range(run * run_size, tl.minimum((run + 1) * run_size, vocab_size), BLOCK_V):
            scaled = _scaled(row_ptr, start + offs_v, vocab_size, best, temperature)
            totals += _masses(_probs(scaled, lowest_order, norm), floor)
        masses_of_runs = tl.where(offs_r == run, tl.sum(totals, axis=0), masses_of_runs)
    target = _target(seed, index, tl.sum(masses_of_runs, axis=0))

    drawn_run = tl.sum((tl.cumsum(masses_of_runs, axis=0) <= target).to(tl.int32), axis=0)
    below = tl.sum(tl.where(offs_r < drawn_run, masses_of_runs, 0), axis=0)
    start = drawn_run * run_size
    scaled = _scaled(row_ptr, start + offs_v, vocab_size, best, temperature)
    masses = _masses(_probs(scaled, lowest_order, norm), floor)
    in_tile = tl.sum(masses, axis=0)
    while (below + in_tile <= target) & (start + BLOCK_V < vocab_size):
        below += in_tile
        start += BLOCK_V
        scaled = _scaled(row_ptr, start + offs_v, vocab_size, best, temperature)
        masses = _masses(_probs(scaled, lowest_order, norm), floor)
        in_tile = tl.sum(masses, axis=0)
    cdf = below + tl.cumsum(masses, axis=0)
    token = start + tl.sum((cdf <= target).to(tl.int32), axis=0)
    tl.store(token_ptr + row, tl.minimum(token, vocab_size - 1).to(tl.int64))


@triton.jit(do_not_specialize=["repetition_ptr", "frequency_ptr", "presence_ptr"])
def penalise_kernel(
    logits_ptr,
    counts_ptr,
    prompt_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    out_ptr,
    vocab_size,
    stride_ls,
    stride_cs,
    stride_ps,
    BLOCK_V: tl.constexpr,
):
    """``seen(l) - frequency * n - presence * [n > 0]``; one program per row and tile [BLOCK_V]."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask = offs < vocab_size
    # [BLOCK_V]
    logits = tl.load(logits_ptr + row * stride_ls + offs, mask=mask, other=0.0).to(tl.float32)
    counts = tl.load(counts_ptr + row * stride_cs + offs, mask=mask, other=0).to(tl.float32)
    in_prompt = tl.load(prompt_ptr + row * stride_ps + offs, mask=mask, other=0) != 0
    repetition = tl.load(repetition_ptr + row)
    in_output = counts > 0.0
    repeated = tl.where(logits > 0.0, tl.div_rn(logits, repetition), logits * repetition)
    logits = tl.where(in_prompt | in_output, repeated, logits)
    logits = logits - tl.load(frequency_ptr + row) * counts
    logits = logits - tl.where(in_output, tl.load(presence_ptr + row), 0.0)
    tl.store(out_ptr + row * vocab_size + offs, logits, mask=mask)


def sample_tokens(logits: torch.Tensor, rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch one program per row; arguments as the operator."""
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_valid = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows == 0:
        return token_ids, is_valid
    block_v = min(BLOCK_V, max(16, next_power_of_2(vocab_size)))
    distances = torch.empty((num_rows, block_v), dtype=torch.float32, device=logits.device)
    candidates = torch.empty((num_rows, block_v), dtype=torch.int32, device=logits.device)
    with on_device_of(logits):
        sample_kernel[(num_rows,)](
            logits,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            rows.min_p,
            rows.seeds,
            rows.indices,
            distances,
            candidates,
            token_ids,
            is_valid.view(torch.int8),
            vocab_size,
            logits.stride(0),
            BLOCK_V=block_v,
            num_warps=16,
        )
    return token_ids, is_valid


def penalise_logits(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Launch over rows and tiles; arguments as the operator."""
    num_rows, vocab_size = logits.shape
    out = torch.empty((num_rows, vocab_size), dtype=torch.float32, device=logits.device)
    if out.numel() == 0:
        return out
    block_v = min(PENALTY_BLOCK_V, next_power_of_2(vocab_size))
    with on_device_of(logits):
        penalise_kernel[(num_rows, triton.cdiv(vocab_size, block_v))](
            logits,
            output_counts,
            in_prompt.view(torch.uint8),
            repetition.contiguous(),
            frequency.contiguous(),
            presence.contiguous(),
            out,
            vocab_size,
            logits.stride(0),
            output_counts.stride(0),
            in_prompt.stride(0),
            BLOCK_V=block_v,
            num_warps=8,
            enable_fp_fusion=False,
        )
    return out
