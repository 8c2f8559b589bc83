"""Sampling on the CPU: in the native library, or in numpy, whose sort and argmax use vectors.

The library has no top-n-sigma, typical-p and XTC: rows with those are numpy's, always, so that no
row's token depends on the others'. What is said here of numpy:

Works in place where it can: new memory of a vocabulary's size costs more than the arithmetic. What
a row keeps is mostly a few tokens, so what comes after truncation works on those of all rows at
once: their masses are added up in one line, modulo 2**64, which differences do not show.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda_kernels.native.library import native_library
from pagoda_kernels.sampling.logit_bias import LogitBias
from pagoda_kernels.sampling.native import can_sample, sample_rows
from pagoda_kernels.sampling.philox import UNIFORM_BITS, philox_mantissa
from pagoda_kernels.sampling.rows import MASS_ONE, NO_XTC, SamplingRows
from pagoda_kernels.sampling.seen_tokens import SeenTokens

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_ELEMENTS_AT_ONCE = 1 << 17
"""Logits of the rows that are drawn together: what the per-core cache holds, masses included."""

_NUM_CANDIDATES = 1024
"""Likeliest tokens in which top-p looks for its threshold before it sorts the vocabulary."""

_LARGE_SHARE = 1 / 32
"""Of a vocabulary: to pick out more tokens than these takes longer than to go through all."""

_LEAST_PROB = np.float32(1 / MASS_ONE)
"""What is less likely has no mass."""


def sample_tokens(logits: torch.Tensor, rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids, whether valid); arguments as the operator."""
    library = native_library()
    if logits.dtype is torch.float16:  # as where a neighbour's penalties have widened all rows
        logits = logits.float()
    if library is None or not can_sample(library, logits):
        return sample_by_numpy(logits, rows)
    token_ids, is_valid = sample_rows(library, logits, rows)
    if rows.truncates_more:
        others = torch.from_numpy(np.flatnonzero(_truncates_more(rows)))
        theirs = SamplingRows(rows.storage[:, others].contiguous(), truncates_more=True)
        token_ids[others] = sample_by_numpy(logits[others], theirs)[0]
    return token_ids, is_valid


def largest_tokens(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids, whether valid); arguments as the operator."""
    library = native_library()
    if library is None or not can_sample(library, logits):
        token_ids, _, is_valid = _largest(logits.float().numpy())
        return torch.from_numpy(token_ids), torch.from_numpy(is_valid)
    return sample_rows(library, logits, None)


def sample_changed(
    logits: torch.Tensor,
    rows: SamplingRows | None,
    biased: Sequence[tuple[int, LogitBias]],
    seen: Sequence[tuple[int, SeenTokens]],
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(token ids, whether valid); arguments as the operator."""
    library = native_library()
    if library is None or not can_sample(library, logits):
        return None
    if rows is not None and rows.truncates_more:  # numpy's, for which all is changed before
        return None
    return sample_rows(library, logits, rows, biased, seen)


def sample_by_numpy(logits: torch.Tensor, rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids, whether valid), without the library; arguments as the operator."""
    wide: Floats = logits.float().numpy()
    vocab_size = wide.shape[1]
    token_ids, best, is_valid = _largest(wide)
    is_random = is_valid & (rows.temperature.numpy() > 0)
    if is_random.any():
        at_once = max(1, _ELEMENTS_AT_ONCE // vocab_size)
        is_cut = _is_cut(rows)
        for cut in (False, True):
            chosen = np.flatnonzero(is_random & (is_cut == cut))
            for start in range(0, len(chosen), at_once):
                part = chosen[start : start + at_once]
                token_ids[part] = _draw(wide[part], best[part], rows, part, is_cut=cut)
    return torch.from_numpy(token_ids), torch.from_numpy(is_valid)


def _largest(logits: Floats) -> tuple[Ints, Floats, NDArray[np.bool_]]:
    """(token ids, 0 where not valid; their logits; whether valid)."""
    token_ids: Ints = logits.argmax(1)
    best: Floats = logits[np.arange(len(logits)), token_ids]  # a NaN if the row holds one
    is_valid: NDArray[np.bool_] = np.isfinite(best)
    if not is_valid.all():
        token_ids[~is_valid] = 0
    return token_ids, best, is_valid


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


def _is_cut(rows: SamplingRows) -> NDArray[np.bool_]:
    """Whether each row keeps only a part of the vocabulary."""
    is_cut: NDArray[np.bool_] = (
        (rows.top_k.numpy() > 0)
        | (rows.top_p.numpy() < MASS_ONE)
        | (rows.min_p.numpy() > 0)
        | _truncates_more(rows)
    )
    return is_cut


def _truncates_more(rows: SamplingRows) -> NDArray[np.bool_]:
    """Whether each row has what the library does not."""
    is_more: NDArray[np.bool_] = (
        (rows.top_n_sigma.numpy() > 0)
        | (rows.typical_p.numpy() < MASS_ONE)
        | (rows.xtc_threshold.numpy() < NO_XTC)
    )
    return is_more


def _draw(
    logits: Floats,
    best: Floats,
    rows: SamplingRows,
    chosen: NDArray[np.intp],
    *,
    is_cut: bool,
) -> Ints:
    """Tokens of the rows `chosen`, whose logits and best logits are given; the logits are lost."""
    parameters = rows.storage.numpy()[:, chosen]
    temperature, min_p, top_n_sigma, xtc = parameters[:4].view(np.float64).astype(np.float32)
    top_k, top_p, typical_p, seeds, indices = parameters[4:]
    # The largest becomes 0, so that a tiny temperature cannot overflow.
    with np.errstate(over="ignore"):  # to minus infinity, which is right
        logits -= best[:, None]
        for row in np.flatnonzero(top_n_sigma):
            _drop_below_sigmas(logits[row], top_n_sigma[row])
        logits /= temperature[:, None]
    for row in np.flatnonzero((top_k > 0) & (top_k < logits.shape[1])):
        scaled = logits[row]
        least = np.partition(scaled, -top_k[row])[-top_k[row]]
        np.copyto(scaled, -np.inf, where=scaled < least)
    for row in np.flatnonzero(typical_p < MASS_ONE):
        _drop_untypical(logits[row], typical_p[row])
    probs: Floats = np.exp(logits, out=logits)
    probs /= probs.sum(1, keepdims=True)
    mantissas = map(philox_mantissa, seeds.tolist(), indices.tolist())
    if not is_cut:
        return _draw_of_all(probs, mantissas)
    floors = np.maximum(probs.max(1) * min_p, _LEAST_PROB)
    with_top_p = np.flatnonzero(top_p < MASS_ONE)
    if len(with_top_p):
        # Where all have it, a slice copies nothing.
        some = with_top_p if len(with_top_p) < len(probs) else slice(None)
        floors[some] = np.maximum(floors[some], _top_p_thresholds(probs[some], top_p[some]))
    for row in np.flatnonzero(xtc < NO_XTC):
        _drop_top_choices(probs[row], floors[row], xtc[row])
    is_kept = probs >= floors[:, None]
    if np.count_nonzero(is_kept) > is_kept.size * _LARGE_SHARE:
        probs *= is_kept
        return _draw_of_all(probs, mantissas)
    kept = _Kept(is_kept)
    masses = _masses(probs.ravel()[kept.at])
    totals, reached = kept.added_up(masses)
    targets = [
        mantissa * total >> UNIFORM_BITS
        for mantissa, total in zip(mantissas, totals.tolist(), strict=True)
    ]
    places = kept.starts + kept.count(reached <= kept.spread(np.array(targets)))
    tokens: Ints = kept.at[places] - np.arange(len(probs)) * probs.shape[1]
    return tokens


def _draw_of_all(probs: Floats, mantissas: Iterable[int]) -> Ints:
    """Tokens of rows that keep most of the vocabulary; the probabilities are lost."""
    cdfs = _masses(probs)
    np.cumsum(cdfs, axis=1, out=cdfs)
    return np.array([
        cdf.searchsorted(mantissa * int(cdf[-1]) >> UNIFORM_BITS, side="right")
        for cdf, mantissa in zip(cdfs, mantissas, strict=True)
    ])  # fmt: skip


class _Kept:
    """Tokens that are kept of every row, in one line.

    Attributes:
        at: places in the flattened rows, one row after the other.
        starts: of each row in the line.
        counts: of each row; at least 1.
    """

    def __init__(self, is_kept: NDArray[np.bool_]) -> None:
        num_rows, vocab_size = is_kept.shape
        self.at = np.flatnonzero(is_kept)
        ends = self.at.searchsorted(np.arange(1, num_rows + 1) * vocab_size)
        self.starts = np.concatenate(([0], ends[:-1]))
        self.counts = ends - self.starts

    def spread(self, of_rows: Ints) -> Ints:
        """Each row's value at each of its tokens."""
        return np.repeat(of_rows, self.counts)

    def added_up(self, masses: Ints) -> tuple[Ints, Ints]:
        """(total of each row, sums of each row's masses up to each token)."""
        sums = masses.cumsum()
        before = sums[self.starts] - masses[self.starts]
        return sums[self.starts + self.counts - 1] - before, sums - self.spread(before)

    def count(self, is_so: NDArray[np.bool_]) -> Ints:
        """How many tokens of each row are so."""
        return np.add.reduceat(is_so.astype(np.int64), self.starts)


def _drop_below_sigmas(distances: Floats, num_sigmas: np.float32) -> None:
    """Top-n-sigma, of logits less the largest: they have the deviation of the logits."""
    finite = distances if distances.min() > -np.inf else distances[distances > -np.inf]
    np.copyto(distances, -np.inf, where=distances < -num_sigmas * finite.std())


def _drop_untypical(scaled: Floats, typical_p: np.int64) -> None:
    """Typical-p: information less its mean, the entropy, is the mean of `scaled` less `scaled`."""
    probs = np.exp(scaled)
    probs /= probs.sum()
    # A number that is not there is at no distance from the mean, but has no probability either.
    values = np.where(probs > 0, scaled, 0)
    distances = np.abs(values - np.float32((probs * values).sum()))
    # By distance, with the probability beside it: floats >= 0 have the order of their bits.
    keys = distances.view(np.int32).astype(np.int64) << 32 | probs.view(np.int32)
    keys.sort()
    reached = _masses((keys & 0xFFFFFFFF).astype(np.int32).view(np.float32)).cumsum()
    last = keys[min(int(reached.searchsorted(typical_p)), len(keys) - 1)] >> 32
    np.copyto(scaled, -np.inf, where=distances.view(np.int32) > last)


def _drop_top_choices(probs: Floats, floor: np.float32, threshold: np.float32) -> None:
    """XTC: of what reaches the threshold, once what is below the floor is dropped, the least."""
    kept = probs[probs >= floor]
    reaching = kept[kept >= threshold * kept.sum()]
    if len(reaching):
        np.copyto(probs, 0, where=probs > reaching.min())


def _masses(probs: Floats) -> NDArray[np.int64]:
    """Integer masses; the probabilities are lost."""
    probs *= np.float32(MASS_ONE)
    return probs.astype(np.int64)


def _top_p_thresholds(probs: Floats, top_p: Ints, num_candidates: int = _NUM_CANDIDATES) -> Floats:
    """Of each row, the probability of the last of the likeliest that reach its mass `top_p`.

    It is looked for among so many candidates, then among all.
    """
    bits = probs.view(np.int32)  # in the order of the floats, none of which is negative
    # Thousands of equals, which truncation and masks leave at 0, are what a partition is slow at,
    # and a sort fast.
    if probs.shape[1] > num_candidates and bits.min(1).all():
        bits = np.partition(bits, -num_candidates)[:, -num_candidates:]
    likeliest: Floats = np.sort(bits)[:, : -num_candidates - 1 : -1].view(np.float32)
    reached = _masses(likeliest.copy())
    np.cumsum(reached, axis=1, out=reached)
    num_below = (reached < top_p[:, None]).sum(1)
    last = np.minimum(num_below, likeliest.shape[1] - 1)
    thresholds: Floats = likeliest[np.arange(len(probs)), last]
    if probs.shape[1] > num_candidates:
        for row in np.flatnonzero(num_below > last):  # one by one: their masses stay in the cache
            one = slice(row, row + 1)
            thresholds[one] = _top_p_thresholds(probs[one], top_p[one], probs.shape[1])
    return thresholds
