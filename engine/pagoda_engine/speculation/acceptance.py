"""How many of the tokens that somebody proposes are right, old ones forgotten. Knows tokens."""

import math
from collections.abc import Sequence

FIRST_ACCEPTANCE = 0.5
"""Share of right proposals that is expected of who has proposed nothing yet."""
RATE = 0.15
"""Weight of the latest proposal in the share of right ones."""


class Acceptance:
    """The share of right ones among proposed tokens behind right ones.

    Attributes:
        acceptance: that share, in [0, 1].
    """

    __slots__ = ("acceptance",)

    def __init__(self, acceptance: float = FIRST_ACCEPTANCE) -> None:
        self.acceptance = acceptance

    def compare(self, expected: Sequence[int], came: Sequence[int], rate: float = RATE) -> None:
        """Learn how right proposed tokens were; those behind a wrong one say nothing.

        Args:
            expected: as proposed.
            came: in their place, maybe more or fewer of them.
            rate: weight of each.
        """
        for token_id, proposed in zip(came, expected, strict=False):
            self.acceptance += rate * ((token_id == proposed) - self.acceptance)
            if token_id != proposed:
                break

    def num_likely(self, least: float) -> int:
        """Return how many proposals in a row are right with at least this probability, in (0, 1).

        A proposal counts only if all before it are right.
        """
        if self.acceptance <= least:
            return 0
        if self.acceptance >= 1.0:
            return 2**31
        return int(math.log(least) / math.log(self.acceptance))

    def num_expected(self, num_proposed: int) -> float:
        """Return how many of so many proposals are right on average."""
        share = self.acceptance
        if share >= 1.0:
            return float(num_proposed)
        return share * (1.0 - share**num_proposed) / (1.0 - share)
