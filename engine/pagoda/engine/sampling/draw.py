"""Temperature, truncation and the draw itself.

Truncation is by threshold, so tokens with equal probability are kept or dropped together, and the
draw runs over the vocabulary in token order: the result does not depend on how the thresholds were
found.
"""

from collections.abc import Sequence

import torch

from pagoda.engine.sampling.sampling_state import SamplingState

_NUM_CANDIDATES = 256
"""Likeliest tokens in which top-p looks for its threshold before it sorts the vocabulary."""


def draw(logits: torch.Tensor, best: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    """Draw one token for each row.

    Args:
        logits: ``[R, V]`` float32, penalties and bias applied.
        best: ``[R]`` the largest logit of each row.
        states: one for each row, temperature > 0.

    Returns:
        ``[R]`` int64 token ids.
    """
    device = logits.device
    temperature = torch.tensor(
        [s.params.temperature for s in states], dtype=torch.float32, device=device
    )
    # The largest becomes 0, so that a tiny temperature cannot overflow.
    scaled = (logits - best[:, None]) / temperature[:, None]
    vocab_size = logits.shape[1]
    top_k_rows = [i for i, s in enumerate(states) if 0 < s.params.top_k < vocab_size]
    if top_k_rows:
        _keep_top_k(scaled, top_k_rows, [states[i].params.top_k for i in top_k_rows])
    probs = torch.softmax(scaled, dim=-1)
    top_p_rows = [i for i, s in enumerate(states) if s.params.top_p < 1.0]
    if top_p_rows:
        _keep_top_p(probs, top_p_rows, [states[i].params.top_p for i in top_p_rows])
    min_p = [s.params.min_p for s in states]
    if any(min_p):
        floor = probs.amax(dim=-1) * torch.tensor(min_p, dtype=torch.float32, device=device)
        probs.masked_fill_(probs < floor[:, None], 0.0)
    return _invert_cdf(probs, [s.uniform for s in states])


def _keep_top_k(scaled: torch.Tensor, rows: list[int], top_ks: list[int]) -> None:
    index = torch.tensor(rows, device=scaled.device)
    kth = torch.tensor(top_ks, device=scaled.device)[:, None] - 1
    chosen = scaled[index]
    threshold = chosen.topk(max(top_ks), dim=-1).values.gather(1, kth)  # [R, 1]
    scaled[index] = chosen.masked_fill_(chosen < threshold, float("-inf"))


def _keep_top_p(probs: torch.Tensor, rows: list[int], top_ps: list[float]) -> None:
    index = torch.tensor(rows, device=probs.device)
    limit = torch.tensor(top_ps, dtype=torch.float64, device=probs.device)[:, None]
    chosen = probs[index]
    vocab_size = chosen.shape[1]
    # On CUDA the whole vocabulary at once: to ask whether that is needed would wait for the device.
    num_candidates = vocab_size if probs.is_cuda else min(_NUM_CANDIDATES, vocab_size)
    kept = _count_top_p(ordered := chosen.topk(num_candidates, dim=-1).values, limit)
    if num_candidates < vocab_size and bool((kept == num_candidates).any()):
        kept = _count_top_p(ordered := chosen.sort(dim=-1, descending=True).values, limit)
    threshold = ordered.gather(1, kept[:, None] - 1)  # [R, 1]
    probs[index] = chosen.masked_fill_(chosen < threshold, 0.0)


def _count_top_p(ordered: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """Return how many of the likeliest are needed to reach the limit; at least 1. ``[R]``."""
    reached = ordered.cumsum(dim=-1, dtype=torch.float64)
    return ((reached - ordered) < limit).sum(dim=-1).clamp_(min=1)


def _invert_cdf(probs: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
    """Return for each row the first token whose cumulative probability exceeds uniform * total."""
    cdf = probs.cumsum(dim=-1, dtype=torch.float64)
    total = cdf[:, -1]
    target = torch.tensor(uniforms, dtype=torch.float64, device=probs.device) * total
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, target[:, None], right=True)[:, 0].clamp_(max=probs.shape[1] - 1)
