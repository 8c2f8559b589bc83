"""Sampling on the CPU, in numpy, whose sort and argmax use vectors where torch's do not.

Works in place where it can: new memory of a vocabulary's size costs more than the arithmetic.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda_kernels.sampling.rows import MASS_ONE, SamplingRows

Floats = NDArray[np.float32]

_ELEMENTS_AT_ONCE = 1 << 16
"""Logits of the rows that are drawn together: what the per-core cache holds, masses included."""

_NUM_CANDIDATES = 256
"""Likeliest tokens in which top-p looks for its threshold before it sorts the vocabulary."""

_UNIFORM_BITS = 53
_LOW32 = 0xFFFFFFFF


def sample_tokens(logits: torch.Tensor, rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids, whether valid); arguments as the operator."""
    wide: Floats = logits.float().numpy()
    num_rows, vocab_size = wide.shape
    token_ids = wide.argmax(1)
    best = wide[np.arange(num_rows), token_ids]  # a NaN if the row holds one
    is_valid = np.isfinite(best)
    if not is_valid.all():
        token_ids[~is_valid] = 0
    is_random = is_valid & (rows.temperature.numpy() > 0)
    if is_random.any():
        chosen = np.flatnonzero(is_random)
        at_once = max(1, _ELEMENTS_AT_ONCE // vocab_size)
        for start in range(0, len(chosen), at_once):
            part = chosen[start : start + at_once]
            token_ids[part] = _draw(wide[part], best[part], rows, part)
    return torch.from_numpy(token_ids), torch.from_numpy(is_valid)


def penalise_logits(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Arguments as the operator."""
    wide = logits.float() if logits.dtype != torch.float32 else logits.clone()
    counts, flat = output_counts.numpy(), wide.numpy()
    # Few tokens have been seen, so only those are touched.
    at = np.nonzero(in_prompt.numpy() | (counts > 0))
    values, own, factor = flat[at], counts[at].astype(np.float32), repetition.numpy()[at[0]]
    repeated = np.where(values > 0, values / factor, values * factor)
    flat[at] = repeated - frequency.numpy()[at[0]] * own - presence.numpy()[at[0]] * (own > 0)
    return wide


def philox_mantissa(seed: int, index: int) -> int:
    """First two words of Philox4x32-10 at counter (index, 0, 0, 0) as an integer below 2**53."""
    c0, c1, c2, c3 = index, 0, 0, 0
    k0, k1 = seed & _LOW32, seed >> 32 & _LOW32
    for _ in range(10):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = product1 >> 32 ^ c1 ^ k0, product1 & _LOW32
        c2, c3 = product0 >> 32 ^ c3 ^ k1, product0 & _LOW32
        k0, k1 = k0 + 0x9E3779B9 & _LOW32, k1 + 0xBB67AE85 & _LOW32
    return c0 >> 5 << 26 | c1 >> 6


def _draw(logits: Floats, best: Floats, rows: SamplingRows, chosen: NDArray[np.intp]) -> list[int]:
    """Tokens of the rows `chosen`, whose logits and best logits are given; the logits are lost."""
    parameters = rows.storage.numpy()[:, chosen]
    temperature, min_p = parameters[:2].view(np.float64).astype(np.float32)
    top_ks, top_ps, seeds, indices = parameters[2:].tolist()
    # The largest becomes 0, so that a tiny temperature cannot overflow.
    with np.errstate(over="ignore"):  # to minus infinity, which is right
        logits -= best[:, None]
        logits /= temperature[:, None]
    for scaled, top_k in zip(logits, top_ks, strict=True):
        if 0 < top_k < len(scaled):
            scaled[scaled < np.partition(scaled, -top_k)[-top_k]] = -np.inf
    probs: Floats = np.exp(logits, out=logits)
    probs /= probs.sum(1, keepdims=True)
    floors = probs.max(1) * min_p
    for row, (top_k, top_p) in enumerate(zip(top_ks, top_ps, strict=True)):
        if top_p < MASS_ONE:
            # Thousands of equals, which top-k left at 0, are what a partition is slow at.
            candidates = probs[row][probs[row] > 0] if top_k else probs[row]
            floors[row] = max(floors[row], _top_p_threshold(candidates, top_p))
    if floors.any():
        probs[probs < floors[:, None]] = 0
    cdfs = _masses(probs)
    np.cumsum(cdfs, axis=1, out=cdfs)
    tokens = []
    for cdf, seed, index in zip(cdfs, seeds, indices, strict=True):
        target = philox_mantissa(seed, index) * int(cdf[-1]) >> _UNIFORM_BITS
        tokens.append(int(cdf.searchsorted(target, side="right")))
    return tokens


def _masses(probs: Floats) -> NDArray[np.int64]:
    """Integer masses; the probabilities are lost."""
    probs *= np.float32(MASS_ONE)
    return probs.astype(np.int64)


def _top_p_threshold(probs: Floats, top_p: int) -> np.float32:
    """Probability of the last of the likeliest tokens that together reach the mass `top_p`."""
    if len(probs) > _NUM_CANDIDATES:
        likeliest = np.partition(probs, -_NUM_CANDIDATES)[-_NUM_CANDIDATES:]
        likeliest.sort()
        reached = _masses(likeliest[::-1].copy()).cumsum()
        if reached[-1] >= top_p:
            return np.float32(likeliest[-1 - int(reached.searchsorted(top_p))])
    likeliest = np.sort(probs)
    reached = _masses(likeliest[::-1].copy())
    np.cumsum(reached, out=reached)
    return np.float32(likeliest[max(0, len(probs) - 1 - int(reached.searchsorted(top_p)))])
