"""What tokens of prompts take, by how much they attend to; fitted while a worker serves.

Knows numbers only.
"""

import numpy as np

from pagoda_worker.heartbeat.least_squares import Sums, non_negative_solution

DECAY = 0.99  # a step: a half-life of about 70
OTHERS_DECAY = 0.9998  # of other kinds of steps: there may be thousands of one kind in a row
MAX_NEAR_TOKENS = 2048
"""That the tokens of a near step attend to, on average."""
MAX_FAR_KINDS = 5
"""Kinds of far steps: of 1, 2-3, 4-7, 8-15 tokens, and of more."""
RIDGE = np.array([1e-9, 1e-5, 1e-3])
"""Where several coefficients explain the same it is the tokens, else what each attends to: chunks
that seem to cost nothing by their number would all at once be large ones."""


class PrefillTime:
    """Seconds = per_token * tokens + per_attended_token * attended + per_context_token * context.

    A long prompt takes thousands of steps whose tokens all attend to about as much. What a token of
    a short one takes is not forgotten meanwhile: near steps are remembered apart from far ones, and
    these by their tokens. Else nothing would tell what is read once for a chunk from what each of
    its tokens takes.
    """

    def __init__(self) -> None:
        self._kinds = [Sums(3, DECAY) for _ in range(1 + MAX_FAR_KINDS)]

    @staticmethod
    def is_far(num_tokens: int, num_attended: int) -> bool:
        """Tell whether a step's tokens attend to much."""
        return num_attended > MAX_NEAR_TOKENS * num_tokens

    def add(self, num_tokens: int, num_attended: int, num_context: int, seconds: float) -> None:
        """Count what the prompts of a step took.

        Args:
            num_tokens: new ones, of all prompts.
            num_attended: what each of them attends to, summed up.
            num_context: KV tokens that are read for them, those of a prompt once.
            seconds: above 0.
        """
        kind = 0
        if self.is_far(num_tokens, num_attended):
            kind = min(MAX_FAR_KINDS, num_tokens.bit_length())
        for number, sums in enumerate(self._kinds):
            if number == kind:
                amounts = num_tokens, num_attended, num_context
                sums.add([amount / seconds for amount in amounts])
            else:
                sums.fade(OTHERS_DECAY)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """Of a token, an attended and a context token; all 0 until something was measured."""
        gram = sum((sums.gram for sums in self._kinds), np.zeros((3, 3)))
        moment = sum((sums.moment for sums in self._kinds), np.zeros(3))
        if not gram[0, 0]:
            return 0.0, 0.0, 0.0
        per_token, per_attended, per_context = non_negative_solution(gram, moment, RIDGE)
        return per_token, per_attended, per_context
