"""Probabilities of a row, as integers that add up exactly, and the thresholds that cut them off."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from pagoda_kernels.sampling import rows as sampling_rows

MASS_OF_ONE: tl.constexpr = tl.constexpr(sampling_rows.MASS_ONE)
FLOAT_MASS_OF_ONE: tl.constexpr = tl.constexpr(float(sampling_rows.MASS_ONE))

BITS_OF_INF: tl.constexpr = tl.constexpr(0x7F800000)

# What `threshold` looks for a threshold of.
OF_ORDERS: tl.constexpr = tl.constexpr(0)
OF_PROBS: tl.constexpr = tl.constexpr(1)
OF_CLOSENESS: tl.constexpr = tl.constexpr(2)


@triton.jit
def distances_of(row_ptr, offs, vocab_size, best):
    """Of logits to the best one, <= 0; -inf beyond the vocabulary."""
    logits = tl.load(row_ptr + offs, mask=offs < vocab_size, other=float("-inf")).to(tl.float32)
    return logits - best


@triton.jit
def scaled_of(row_ptr, offs, vocab_size, best, temperature):
    """Distances to the best logit in units of the temperature."""
    return tl.div_rn(distances_of(row_ptr, offs, vocab_size, best), temperature)


@triton.jit
def order_of(distances):
    """Integers >= 0 in the order of distances, scaled or not, which are <= 0; 0 for -inf."""
    return -tl.abs(distances).to(tl.int32, bitcast=True) + BITS_OF_INF


@triton.jit
def exponentials_of(scaled, lowest_order):
    """Of what top-k kept, 0 of the rest."""
    return tl.where(order_of(scaled) >= lowest_order, tl.exp(scaled), 0.0)


@triton.jit
def probs_of(scaled, lowest_order, norm):
    """Probabilities of what top-k kept, 0 of the rest."""
    return tl.div_rn(exponentials_of(scaled, lowest_order), norm)


@triton.jit
def masses_of(probs, floor):
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
def tile_threshold(key, weight, wanted):
    """Largest integer x so that keys at or above x weigh at least `wanted`; 0 if none does.

    Tiles key int32 >= 0 and weight int64, [BLOCK_V].
    """
    found = 0
    for step in range(16):
        shift = 30 - 2 * step
        found = _extended(found, shift, _reached(key, weight, found, shift), wanted)
    return found


@triton.jit
def threshold(
    row_ptr, vocab_size, best, temperature, lowest_order, norm, mean, wanted,
    KEYS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """`tile_threshold` of a row, two bits in a pass.

    Of orders, each token weighing 1; of the bits of probabilities, weighing their mass; or of how
    close scaled distances are to their mean, weighing the mass too.
    """
    offs_v = tl.arange(0, BLOCK_V)
    found = 0
    for step in range(16):
        shift = 30 - 2 * step
        # [BLOCK_V, 4]
        weights = tl.zeros([BLOCK_V, 4], dtype=tl.int64)
        for start in range(0, vocab_size, BLOCK_V):
            offs = start + offs_v
            scaled = scaled_of(row_ptr, offs, vocab_size, best, temperature)
            if KEYS == OF_ORDERS:
                key = order_of(scaled)
                weight = (offs < vocab_size).to(tl.int64)
            else:
                probs = probs_of(scaled, lowest_order, norm)
                weight = masses_of(probs, 0.0)
                if KEYS == OF_PROBS:
                    key = probs.to(tl.int32, bitcast=True)
                else:
                    key = order_of(scaled - mean)
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
def norm_of(row_ptr, vocab_size, best, temperature, lowest_order, BLOCK_V: tl.constexpr):
    """Sum of the exponentials of what top-k kept."""
    offs_v = tl.arange(0, BLOCK_V)
    sums = tl.zeros([BLOCK_V], dtype=tl.float32)
    # [BLOCK_V], loaded a tile ahead: a division, being a branch, holds up what follows
    distances = distances_of(row_ptr, offs_v, vocab_size, best)
    for start in range(BLOCK_V, vocab_size + BLOCK_V, BLOCK_V):
        next_distances = distances_of(row_ptr, start + offs_v, vocab_size, best)
        sums += exponentials_of(tl.div_rn(distances, temperature), lowest_order)
        distances = next_distances
    return tl.sum(sums, axis=0)


@triton.jit
def target_of(seed, index, total):
    """Mass below which the drawn token does not reach: ``uniform * total``, rounded down."""
    return tl.umulhi(_philox_mantissa(seed, index) << 11, total.to(tl.uint64)).to(tl.int64)
