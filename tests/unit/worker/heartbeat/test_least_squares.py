import numpy as np
import pytest

from pagoda_worker.heartbeat.least_squares import non_negative_solution


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_nothing_non_negative_is_better(noise: float) -> None:
    """By the conditions of Kuhn and Tucker, with solutions that have zeros and some that do not."""
    rng = np.random.default_rng(7)
    num_inner = num_edge = 0
    for _ in range(200):
        samples = rng.normal(size=(8, rng.integers(1, 5)))
        measured = samples @ rng.uniform(0.5, 2.0, samples.shape[1]) + noise * rng.normal(size=8)
        gram, moment = samples.T @ samples, samples.T @ measured
        found = np.array(non_negative_solution(gram, moment))
        slope = gram @ found - moment
        tolerance = 1e-6 * (1.0 + abs(moment).max())
        assert (found >= 0.0).all()
        assert (slope > -tolerance).all()
        assert (abs(slope[found > 0.0]) < tolerance).all()
        num_inner += bool(found.all())
        num_edge += not found.all()
    assert num_inner > 0
    assert bool(num_edge) == bool(noise > 1.0)
