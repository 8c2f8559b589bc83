"""Choose one token for each row of logits.

Order: penalties, bias, temperature, truncation (top-k, top-p, min-p), softmax, draw. Every row's
result is a function of its own logits and state alone. Knows nothing of sequences or of when they
end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagoda.engine.sampling.adjust import adjust_logits
from pagoda.engine.sampling.draw import draw
from pagoda.engine.sampling.sampling_state import SamplingState
from pagoda.engine.step_result import TokenLogprobs

MIN_LOGPROB = -9999.0
"""Reported in place of minus infinity, which JSON cannot carry."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One row's choice.

    Attributes:
        token_id: the token.
        logprobs: of the model's own distribution; None if not asked.
        is_valid: False when the logits held a NaN or nothing finite; then ``token_id`` means
            nothing.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    is_valid: bool = True


def sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[SampledToken]:
    """Choose a token for each row. Waits for the device once.

    Args:
        logits: ``[S, V]`` of any float dtype, on any device; not changed.
        states: one for each row; not changed.
    """
    if all(state.is_plain and not state.must_not_stop for state in states):
        best = logits.max(dim=-1)
        return _checked(best.indices.tolist(), best.values.tolist())
    raw = logits.float()
    adjusted = adjust_logits(raw, states)
    best = adjusted.max(dim=-1)
    token_ids = best.indices
    random_rows = [i for i, state in enumerate(states) if state.params.temperature > 0.0]
    if random_rows:
        rows = torch.tensor(random_rows, device=logits.device)
        token_ids[rows] = draw(adjusted[rows], best.values[rows], [states[i] for i in random_rows])
    sampled = _checked(token_ids.tolist(), best.values.tolist())
    return _with_logprobs(sampled, raw, states)


def _checked(token_ids: list[int], best_values: list[float]) -> list[SampledToken]:
    return [
        SampledToken(token_id, is_valid=float("-inf") < value < float("inf"))
        for token_id, value in zip(token_ids, best_values, strict=True)
    ]


def _with_logprobs(
    sampled: list[SampledToken], raw: torch.Tensor, states: Sequence[SamplingState]
) -> list[SampledToken]:
    wanted = [
        (i, state.params.num_logprobs)
        for i, state in enumerate(states)
        if state.params.num_logprobs is not None and sampled[i].is_valid
    ]
    if not wanted:
        return sampled
    rows = [i for i, _ in wanted]
    logprobs = torch.log_softmax(raw[rows], dim=-1).clamp_(min=MIN_LOGPROB)
    chosen_ids = torch.tensor([sampled[i].token_id for i in rows], device=raw.device)
    chosen = logprobs.gather(1, chosen_ids[:, None])[:, 0].tolist()
    top = logprobs.topk(max(n for _, n in wanted), dim=-1)
    top_ids, top_values = top.indices.tolist(), top.values.tolist()
    for j, (i, num_logprobs) in enumerate(wanted):
        best = tuple(zip(top_ids[j][:num_logprobs], top_values[j][:num_logprobs], strict=True))
        token_id = sampled[i].token_id
        sampled[i] = SampledToken(token_id, TokenLogprobs(token_id, chosen[j], best))
    return sampled
