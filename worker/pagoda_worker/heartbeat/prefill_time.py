"""What tokens of prompts take, by how much they attend to; fitted while a worker serves.

Knows numbers only.
"""

import numpy as np

from pagoda_worker.heartbeat.least_squares import Sums, non_negative_solution

DECAY = 0.99  # a step: a half-life of about 70
NEAR_DECAY = 0.9995  # of near steps, a far one: there may be thousands of these in a row
MAX_NEAR_TOKENS = 2048
"""That the tokens of a near step attend to, on average."""
ATTENDED_RIDGE = 1e-4
"""Beside one length alone both coefficients explain the same: then it is the tokens."""


class PrefillTime:
    """Seconds of a step's prompts = per_token * tokens + per_attended_token * attended.

    A long prompt takes thousands of steps whose tokens all attend to about as much. What a token of
    a short one takes is not forgotten meanwhile: near steps are remembered apart from far ones.
    """

    def __init__(self) -> None:
        self._near, self._far = Sums(2, DECAY), Sums(2, DECAY)

    @staticmethod
    def is_far(num_tokens: int, num_attended: int) -> bool:
        """Tell whether a step's tokens attend to much."""
        return num_attended > MAX_NEAR_TOKENS * num_tokens

    def add(self, num_tokens: int, num_attended: int, seconds: float) -> None:
        """Count what the prompts of a step took."""
        features = np.array([num_tokens, num_attended]) / seconds
        if self.is_far(num_tokens, num_attended):
            self._far.add(features)
            self._near.fade(NEAR_DECAY)
        else:
            self._near.add(features)
            self._far.fade(NEAR_DECAY)

    @property
    def coefficients(self) -> tuple[float, float]:
        """(per_token, per_attended_token); both 0 until something was measured."""
        gram = self._near.gram + self._far.gram
        moment = self._near.moment + self._far.moment
        if not gram[0, 0]:
            return 0.0, 0.0
        ridge = np.array([1e-9, ATTENDED_RIDGE])
        per_token, per_attended_token = non_negative_solution(gram, moment, ridge)
        return per_token, per_attended_token
