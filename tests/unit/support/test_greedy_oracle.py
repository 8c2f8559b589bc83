"""A guess makes the oracle quicker, and changes no answer."""

from pathlib import Path

import pytest
from support.greedy_oracle import GreedyOracle
from support.tiny_checkpoints import make_tiny_checkpoint

PROMPT = [5, 80, 200]


@pytest.mark.slow
def test_a_guess_changes_no_answer(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", "llama")
    expected = GreedyOracle(folder).greedy(PROMPT, 12)
    wrong = [*expected[:-1], expected[-1] ^ 1]
    for guess in (expected, wrong, expected[:-1], [*expected, 1]):
        assert GreedyOracle(folder).greedy(PROMPT, 12, guess=guess) == expected
