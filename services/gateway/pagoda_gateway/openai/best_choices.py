"""Which of a prompt's choices are its likeliest: what `best_of` asks for."""

import math
from collections.abc import Sequence

from pagoda_gateway.sequences.output.sequence import Delta, OutputSequence

Output = tuple[OutputSequence, Delta]


def best_choices(outputs: Sequence[Output], *, num_choices: int, num_best: int) -> list[Output]:
    """Return the `num_best` likeliest of each prompt's choices, the likeliest first.

    Args:
        outputs: `num_choices` of each prompt, one prompt after the other; whole, with logprobs.
        num_choices: of each prompt.
        num_best: to return of each prompt; among equally likely ones the first.
    """
    return [
        output
        for first in range(0, len(outputs), num_choices)
        for output in sorted(
            outputs[first : first + num_choices],
            key=lambda output: mean_logprob(output[1]),
            reverse=True,
        )[:num_best]
    ]


def first_choices(outputs: Sequence[Output], *, num_choices: int, num_best: int) -> list[Output]:
    """Return the first `num_best` of each prompt's choices, which a search has put in order.

    Args:
        outputs: `num_choices` of each prompt, one prompt after the other.
        num_choices: of each prompt.
        num_best: to return of each prompt.
    """
    return [output for i, output in enumerate(outputs) if i % num_choices < num_best]


def mean_logprob(delta: Delta) -> float:
    """Return the mean over an output's tokens, so that a long one is not less likely for that."""
    return math.fsum(p.chosen.logprob for p in delta.logprobs) / max(1, len(delta.logprobs))
