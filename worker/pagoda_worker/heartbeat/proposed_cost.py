"""What each proposed token adds to a step, apart by how many sequences the step decodes.

Beside one sequence more rows are nearly free, since its step reads all weights anyway; beside many
they cost what any row does. No line through all steps says both. Knows numbers only.
"""

import math
from dataclasses import dataclass

RATE = 0.1
"""Weight of the latest step without proposals in how far such steps are from what is predicted."""
DECAY = 0.98
"""Of what was measured, per step with proposals."""
PLAIN_DECAY = 0.998
"""Of the same, per step without: who seemed too dear is tried again some time."""
MIN_PLAIN = 4
"""Steps without proposals that must be known, to tell what proposals add."""
PRIOR_TOKENS = 4.0
"""Proposed tokens that the line through all steps counts for."""


@dataclass(slots=True)
class _Batch:
    """Steps of about as many sequences.

    Attributes:
        ratio: of the time of those without proposals to what is predicted for them.
        seconds: that proposed tokens have added.
        num_proposed: how many those were.
        num_plain: steps without any.
    """

    ratio: float = 1.0
    seconds: float = 0.0
    num_proposed: float = 0.0
    num_plain: int = 0


class ProposedCost:
    """Seconds of a proposed token for 1, 2-3, 4-7, 8-15, ... sequences."""

    def __init__(self) -> None:
        self._batches: list[_Batch] = []

    def add(
        self, num_sequences: int, num_proposed: int, *, seconds: float, predicted: float
    ) -> None:
        """Learn from a step of decodes alone.

        Args:
            num_sequences: at least 1.
            num_proposed: tokens that it verified.
            seconds: that it took.
            predicted: that it is thought to take without them, above 0.
        """
        index = num_sequences.bit_length() - 1
        while len(self._batches) <= index:
            self._batches.append(_Batch())
        batch = self._batches[index]
        decay = DECAY if num_proposed else PLAIN_DECAY
        if num_proposed:
            batch.seconds = batch.seconds * decay + seconds - batch.ratio * predicted
            batch.num_proposed = batch.num_proposed * decay + num_proposed
        else:
            batch.num_plain += 1
            rate = max(RATE, 1.0 / batch.num_plain)
            batch.ratio += rate * (seconds / predicted - batch.ratio)
            batch.seconds *= decay
            batch.num_proposed *= decay

    def line(self, fitted: float, prior: float) -> float:
        """Return the seconds by a line through all steps, the nearer to `prior` the longer ago.

        Steps without proposals say nothing about them: a line that was wrong would stay.
        """
        known = sum(batch.num_proposed for batch in self._batches)
        return (known * fitted + PRIOR_TOKENS * prior) / (known + PRIOR_TOKENS)

    def by_batch(self, prior: float) -> tuple[float, ...]:
        """Return the seconds, at least 0; about `prior` where no proposed token was measured.

        Infinite, so that none is proposed, where it is not known yet what steps take without: the
        first few of a size show it.
        """
        return tuple(
            max(0.0, b.seconds + PRIOR_TOKENS * prior) / (b.num_proposed + PRIOR_TOKENS)
            if b.num_plain >= MIN_PLAIN
            else math.inf
            for b in self._batches
        )
