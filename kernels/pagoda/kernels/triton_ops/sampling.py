"""Sampling, one program per row. Reference: `reference_sampling`.

A row is read once for each pass; a vocabulary's row stays in the L2 cache between them.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda.kernels import sampling_rows
from pagoda.kernels.sampling_rows import SamplingRows
from pagoda.kernels.triton_ops.launch import next_power_of_2, on_device_of

BLOCK_V = 2048
"""With 16 warps a tile's sums stay in 128 registers; a row has a processor to itself."""

PENALTY_BLOCK_V = 4096

MASS_OF_ONE: tl.constexpr = tl.constexpr(sampling_rows.MASS_ONE)
FLOAT_MASS_OF_ONE: tl.constexpr = tl.constexpr(float(sampling_rows.MASS_ONE))

BITS_OF_INF: tl.constexpr = tl.constexpr(0x7F800000)


@triton.jit
def _scaled(row_ptr, offs, vocab_size, best, temperature):
    """Distances to the best logit in units of the temperature, <= 0; -inf beyond the vocabulary."""
    logits = tl.load(row_ptr + offs, mask=offs < vocab_size, other=float("-inf")).to(tl.float32)
    return tl.div_rn(logits - best, temperature)


@triton.jit
def _order(scaled):
    """Integers >= 0 in the order of `scaled`, which is <= 0; 0 for -inf."""
    return -tl.abs(scaled).to(tl.int32, bitcast=True) + BITS_OF_INF


@triton.jit
def _probs(scaled, lowest_order, norm):
    """Probabilities of what top-k kept, 0 of the rest."""
    return tl.where(_order(scaled) >= lowest_order, tl.div_rn(tl.exp(scaled), norm), 0.0)


@triton.jit
def _masses(probs, floor):
    """Integer masses of the probabilities from `floor` on."""
    return tl.where(probs >= floor, probs * FLOAT_MASS_OF_ONE, 0.0).to(tl.int64)


@triton.jit
def _threshold(
    row_ptr, vocab_size, best, temperature, lowest_order, norm, wanted,
    OF_PROBS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Largest integer x so that what is at or above x weighs at least `wanted`.

    Of orders, each token weighing 1, or of the bits of probabilities, weighing their mass. Two bits
    of x are found in a pass, highest first.
    """
    digits = tl.arange(0, 4)
    offs_v = tl.arange(0, BLOCK_V)
    found = 0
    for step in range(16):
        shift = 30 - 2 * step
        candidates = found + (digits << shift)
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
            at_or_above = key[:, None] >= candidates[None, :]
            weights += tl.where(at_or_above, weight[:, None], 0)
        enough = (tl.sum(weights, axis=0) >= wanted) & (candidates >= found)  # none overflowed
        found += tl.max(tl.where(enough, digits, 0), axis=0) << shift
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


@triton.jit(
    do_not_specialize=[
        "temperature_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "min_p_ptr",
        "seed_ptr",
        "index_ptr",
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
    token_ptr,
    valid_ptr,
    vocab_size,
    stride_ls,
    BLOCK_V: tl.constexpr,
):
    """Greedy, or the first token whose cumulative mass exceeds ``uniform * total``.

    Tile [BLOCK_V]; one program per row: best, top-k threshold, norm, top-p threshold, total, draw.
    Passes for what a row does not ask are skipped.
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

    lowest_order = 0
    top_k = tl.load(top_k_ptr + row)
    if (top_k > 0) & (top_k < vocab_size):
        lowest_order = _threshold(
            row_ptr, vocab_size, best, temperature, 0, 1.0, top_k.to(tl.int64), False, BLOCK_V
        )
    sums = tl.zeros([BLOCK_V], dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        scaled = _scaled(row_ptr, start + offs_v, vocab_size, best, temperature)
        sums += _probs(scaled, lowest_order, 1.0)
    norm = tl.sum(sums, axis=0)

    # The likeliest has exp(0) / norm.
    floor = tl.div_rn(1.0, norm) * tl.load(min_p_ptr + row).to(tl.float32)
    top_p = tl.load(top_p_ptr + row)
    if top_p < MASS_OF_ONE:
        bits = _threshold(
            row_ptr, vocab_size, best, temperature, lowest_order, norm, top_p, True, BLOCK_V
        )
        floor = tl.maximum(floor, bits.to(tl.float32, bitcast=True))

    totals = tl.zeros([BLOCK_V], dtype=tl.int64)
    for start in range(0, vocab_size, BLOCK_V):
        scaled = _scaled(row_ptr, start + offs_v, vocab_size, best, temperature)
        totals += _masses(_probs(scaled, lowest_order, norm), floor)
    total = tl.sum(totals, axis=0)
    mantissa = _philox_mantissa(tl.load(seed_ptr + row), tl.load(index_ptr + row))
    target = tl.umulhi(mantissa << 11, total.to(tl.uint64)).to(tl.int64)

    start = 0
    below = total - total
    scaled = _scaled(row_ptr, offs_v, vocab_size, best, temperature)
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
    """Launch one program per row; arguments as `pagoda.kernels.sampling.sample_tokens`."""
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_valid = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows == 0:
        return token_ids, is_valid
    with on_device_of(logits):
        sample_kernel[(num_rows,)](
            logits,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            rows.min_p,
            rows.seeds,
            rows.indices,
            token_ids,
            is_valid.view(torch.int8),
            vocab_size,
            logits.stride(0),
            BLOCK_V=min(BLOCK_V, max(16, next_power_of_2(vocab_size))),
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
    """Launch over rows and tiles; arguments as `pagoda.kernels.sampling.penalise_logits`."""
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
