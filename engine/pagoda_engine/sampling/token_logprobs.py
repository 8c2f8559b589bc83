"""Logprobs of one token, as callers of the engine get them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities, before penalties and temperature.

    Attributes:
        token_id: the token.
        logprob: its own.
        top: (token id, logprob) of the likeliest, or of those asked for; likeliest first.
        rank: of the token among all, 1 = likeliest; 0 for output tokens, whose rank nobody asks.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0
