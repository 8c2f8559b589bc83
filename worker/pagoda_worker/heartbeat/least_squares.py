"""Least squares over samples that come one by one, with coefficients that cannot be negative.

Knows numbers only.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Sums:
    """What a fit needs of its samples; old ones count less and less.

    A sample is its features over what was measured, so each weighs in relative error: else the few
    largest would decide alone. Plain numbers: of so few features arrays cost ten times as much, and
    every step is a sample.
    """

    def __init__(self, num_features: int, decay: float) -> None:
        self._gram = [[0.0] * num_features for _ in range(num_features)]
        self._moment = [0.0] * num_features
        self._decay = decay

    @property
    def gram(self) -> Array:
        """Sums of products of two features, ``[N, N]``."""
        return np.array(self._gram)

    @property
    def moment(self) -> Array:
        """Sums of features, ``[N]``."""
        return np.array(self._moment)

    def add(self, features: Sequence[float]) -> None:
        """Count one sample."""
        decay = self._decay
        for row, feature in zip(self._gram, features, strict=True):
            row[:] = [
                old * decay + feature * other for old, other in zip(row, features, strict=True)
            ]
        self._moment = [
            old * decay + feature for old, feature in zip(self._moment, features, strict=True)
        ]

    def fade(self, decay: float) -> None:
        """Let what was counted count less."""
        for row in (*self._gram, self._moment):
            row[:] = [old * decay for old in row]


def non_negative_solution(gram: Array, moment: Array, ridge: Array | float = 1e-9) -> list[float]:
    """Return the non-negative least-squares solution of ``gram x = moment``.

    Features are few, so every subset is tried, unless the best of all has nothing negative.

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
        if size < num == np.count_nonzero(best):
            break
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
