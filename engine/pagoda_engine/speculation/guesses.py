"""How right a sequence's proposer is, measured at every token, whether it was verified or not.

Knows tokens and shares. Knows nothing of what a verification costs.
"""

import math
from collections.abc import Sequence

from pagoda_engine.speculation.proposer import Proposer

FIRST_ACCEPTANCE = 0.5
"""Share of right proposals that is expected of a sequence of which nothing is known."""
MAX_RESTS = 7
RATE = 0.15
"""Weight of the latest proposal in the share of right ones."""


class Guesses:
    """Proposals for one sequence, compared with what came.

    What was proposed is remembered until the tokens are there, so a sequence for which nothing is
    verified any more is watched for free, and begins again when it repeats itself.

    Attributes:
        acceptance: share of right ones among the proposed tokens behind right ones, old ones
            forgotten.
        num_rests: steps for which it is not worth while to look.
    """

    __slots__ = (
        "_expected",
        "_next_rest",
        "_num_seen",
        "_proposer",
        "_token_ids",
        "acceptance",
        "num_rests",
    )

    def __init__(self, token_ids: Sequence[int], proposer: Proposer) -> None:
        """Follow `token_ids`, which go on growing, as `proposer` does."""
        self.acceptance = FIRST_ACCEPTANCE
        self.num_rests = 0
        self._next_rest = 1
        self._token_ids = token_ids
        self._proposer = proposer
        self._expected: Sequence[int] = ()
        self._num_seen = len(token_ids)

    def look(self, max_tokens: int, *, counts_none: bool = False) -> Sequence[int]:
        """Compare what was proposed with what has come since; return new proposals, maybe none.

        Args:
            max_tokens: at most so many; at least 0.
            counts_none: to have nothing to propose counts as a wrong proposal.
        """
        num_seen, self._num_seen = self._num_seen, len(self._token_ids)
        if self._expected:
            new = self._token_ids[num_seen : self._num_seen]
            for token_id, expected in zip(new, self._expected, strict=False):
                self.acceptance += RATE * ((token_id == expected) - self.acceptance)
                if token_id != expected:
                    break
        elif counts_none and num_seen < self._num_seen:
            self.acceptance -= RATE * self.acceptance
        self._expected = self._proposer.propose(max_tokens) if max_tokens else ()
        return self._expected

    def rest(self, *, is_useful: bool) -> None:
        """Look less often, the longer no look has been useful: each takes some microseconds."""
        self.num_rests = 0 if is_useful else self._next_rest
        self._next_rest = 1 if is_useful else min(MAX_RESTS, 2 * self._next_rest)

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
