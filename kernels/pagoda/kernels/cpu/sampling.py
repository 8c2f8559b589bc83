"""Sampling on the CPU: all rows at once, the vocabulary sorted only where its head does not do."""

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.kernels.sampling_rows import SamplingRows

MASS_ONE = 2.0**62
"""Mass of probability 1: sums of integers do not depend on their order."""

_NUM_CANDIDATES = 256
"""Likeliest tokens in which top-p looks for its threshold before it sorts the vocabulary."""

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)

Words = NDArray[np.uint64]


def sample_tokens(logits: torch.Tensor, rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids, whether valid); arguments as `pagoda.kernels.sampling.sample_tokens`."""
    best, token_ids = logits.max(dim=-1)
    is_valid = best.isfinite()
    is_random = (rows.temperature > 0) & is_valid
    if bool(is_random.any()):
        drawn = is_random.nonzero().squeeze(1)
        token_ids[drawn] = _draw(logits[drawn].float(), best[drawn].float(), rows, drawn)
    return token_ids.masked_fill(~is_valid, 0), is_valid


def penalise_logits(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Arguments as `pagoda.kernels.sampling.penalise_logits`."""
    wide, factor = logits.float(), repetition[:, None]
    counts, in_output = output_counts.float(), output_counts > 0
    repeated = torch.where(wide > 0, wide / factor, wide * factor)
    wide = torch.where(in_prompt | in_output, repeated, wide)
    return wide - frequency[:, None] * counts - presence[:, None] * in_output


def uniforms(seeds: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """``[S]`` float64 in [0, 1), 53 bits from the first two words of Philox4x32-10."""
    key = seeds.numpy().view(np.uint64)
    k0, k1 = key & _LOW32, key >> _SHIFT32
    c0 = indices.numpy().astype(np.uint64)
    c1 = c2 = c3 = np.zeros_like(c0)
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> _SHIFT32) ^ c1 ^ k0, product1 & _LOW32
        c2, c3 = (product0 >> _SHIFT32) ^ c3 ^ k1, product0 & _LOW32
        k0, k1 = (k0 + _WEYL[0]) & _LOW32, (k1 + _WEYL[1]) & _LOW32
    mantissas = (c0 >> np.uint64(5) << np.uint64(26)) | (c1 >> np.uint64(6))
    return torch.from_numpy(mantissas.astype(np.float64) * 2.0**-53)


def _draw(
    logits: torch.Tensor, best: torch.Tensor, rows: SamplingRows, drawn: torch.Tensor
) -> torch.Tensor:
    """Token ids of the rows `drawn`, whose logits and best logits are given, ``[R, V], [R]``."""
    # The largest becomes 0, so that a tiny temperature cannot overflow.
    scaled = (logits - best[:, None]) / rows.temperature[drawn, None]
    _keep_top_k(scaled, rows.top_k[drawn].long())
    probs = torch.softmax(scaled, dim=-1)
    _keep_top_p(probs, rows.top_p[drawn])
    floor = probs.amax(dim=-1) * rows.min_p[drawn]
    probs.masked_fill_(probs < floor[:, None], 0.0)
    cdf = _masses(probs).cumsum(dim=-1)
    total = cdf[:, -1]
    target = (uniforms(rows.seeds[drawn], rows.indices[drawn]) * total.double()).long()
    target = torch.minimum(target, total - 1)
    return torch.searchsorted(cdf, target[:, None], right=True)[:, 0]


def _masses(probs: torch.Tensor) -> torch.Tensor:
    return (probs * MASS_ONE).long()


def _keep_top_k(scaled: torch.Tensor, top_k: torch.Tensor) -> None:
    index = ((top_k > 0) & (top_k < scaled.shape[1])).nonzero().squeeze(1)
    if not len(index):
        return
    top_k, chosen = top_k[index], scaled[index]
    threshold = chosen.topk(int(top_k.max()), dim=-1).values.gather(1, top_k[:, None] - 1)
    scaled[index] = chosen.masked_fill_(chosen < threshold, float("-inf"))


def _keep_top_p(probs: torch.Tensor, top_p: torch.Tensor) -> None:
    index = (top_p < 1.0).nonzero().squeeze(1)
    if not len(index):
        return
    chosen, limit = probs[index], (top_p[index, None] * MASS_ONE).long()
    num_candidates = min(_NUM_CANDIDATES, chosen.shape[1])
    kept = _count_top_p(ordered := chosen.topk(num_candidates, dim=-1).values, limit)
    if num_candidates < chosen.shape[1] and bool((kept == num_candidates).any()):
        kept = _count_top_p(ordered := chosen.sort(dim=-1, descending=True).values, limit)
    threshold = ordered.gather(1, kept[:, None] - 1)  # [R, 1]
    probs[index] = chosen.masked_fill_(chosen < threshold, 0.0)


def _count_top_p(ordered: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """How many of the likeliest are needed to reach the limit; at least 1. ``[R]``."""
    masses = _masses(ordered)
    return ((masses.cumsum(dim=-1) - masses) < limit).sum(dim=-1).clamp_(min=1)
