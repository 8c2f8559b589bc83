"""Least squares over samples that come one by one, with coefficients that cannot be negative.

Knows numbers only.
"""

import itertools

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Sums:
    """What a fit needs of its samples; old ones count less and less.

    A sample is its features over what was measured, so each weighs in relative error: else the few
    largest would decide alone.
    """

    def __init__(self, num_features: int, decay: float) -> None:
        self.gram: Array = np.zeros((num_features, num_features))
        self.moment: Array = np.zeros(num_features)
        self._decay = decay

    def add(self, features: Array) -> None:
        """Count one sample."""
        self.fade(self._decay)
        self.gram += np.outer(features, features)
        self.moment += features

    def fade(self, decay: float) -> None:
        """Let what was counted count less."""
        self.gram *= decay
        self.moment *= decay


def non_negative_solution(gram: Array, moment: Array, ridge: Array | float = 1e-9) -> list[float]:
    """Return the non-negative least-squares solution of ``gram x = moment``.

    Features are few, so every subset is tried.

    Args:
        gram: ``[N, N]``.
        moment: ``[N]``.
        ridge: what each coefficient costs, or all alike, beside a mean error of 1: where several
            explain the same, the cheap one does.
    """
    num = len(moment)
    scale = 1.0 / np.sqrt(np.maximum(np.diag(gram), 1e-30))
    scaled = gram * np.outer(scale, scale) + np.eye(num) * ridge
    target = moment * scale
    best, best_loss = np.zeros(num), np.inf
    for size in range(num, 0, -1):
        for subset in itertools.combinations(range(num), size):
            index = list(subset)
            part = np.linalg.solve(scaled[np.ix_(index, index)], target[index])
            loss = float(-target[index] @ part)  # up to a constant, the squared error
            if (part >= 0).all() and loss < best_loss:
                best = np.zeros(num)
                best[index] = part
                best_loss = loss
    coefficients: list[float] = (best * scale).tolist()
    return coefficients
