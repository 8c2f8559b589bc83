"""From logits to tokens: each row's result is a function of its own logits and state.

Knows parameters, penalties and random numbers by (seed, index). Knows nothing of the model, or of
which sequences share a batch.
"""

from pagoda_engine.sampling.prompt_scores import ScoredRows, score, to_prompt_logprobs
from pagoda_engine.sampling.row_plan import RowPlan, SampleRow, plan_guesses, plan_rows
from pagoda_engine.sampling.sampler import SampledToken, sample, to_tokens
from pagoda_engine.sampling.sampling_state import SamplingState, TokenCounts, count_tokens

__all__ = [
    "RowPlan",
    "SampleRow",
    "SampledToken",
    "SamplingState",
    "ScoredRows",
    "TokenCounts",
    "count_tokens",
    "plan_guesses",
    "plan_rows",
    "sample",
    "score",
    "to_prompt_logprobs",
    "to_tokens",
]
