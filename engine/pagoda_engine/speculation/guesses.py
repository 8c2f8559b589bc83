"""How right a sequence's proposer is, measured at every token but in its rests.

Knows tokens and shares. Knows nothing of what a verification costs.
"""

from collections.abc import Sequence

from pagoda_engine.speculation.acceptance import RATE, Acceptance
from pagoda_engine.speculation.proposer import Proposer

MAX_RESTS = 15
"""Steps between two looks at most: each takes some 30 us, as a step has emptied the caches."""
MAX_RESTS_ALONE = 31
"""Where nobody else decodes. Of several all should propose in the same steps, and soon: a step's
base is saved by all of them together."""


class Guesses(Acceptance):
    """Proposals for one sequence, compared with what came.

    What was proposed is remembered until the tokens are there, so a sequence for which nothing is
    verified any more is watched for free, and begins again when it repeats itself.

    Attributes:
        looks_at: the number of the step from which on it is worth while to look again.
    """

    __slots__ = (
        "_expected",
        "_next_rest",
        "_num_seen",
        "_proposer",
        "_token_ids",
        "looks_at",
    )

    def __init__(self, token_ids: Sequence[int], proposer: Proposer) -> None:
        """Follow `token_ids`, which go on growing, as `proposer` does."""
        super().__init__()
        self.looks_at = 0
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
            self.compare(self._expected, self._token_ids[num_seen : self._num_seen])
        elif counts_none and num_seen < self._num_seen:
            self.acceptance -= RATE * self.acceptance
        self._expected = self._proposer.propose(max_tokens) if max_tokens else ()
        return self._expected

    def is_likely(self, least: float) -> bool:
        """Tell whether the last look found something that is right with this probability."""
        return bool(self._expected) and self.acceptance > least

    def rest(self, step: int, *, is_useful: bool, most: int = MAX_RESTS) -> None:
        """Look less often, the longer no look has been useful: each takes some microseconds.

        Args:
            step: that has looked.
            is_useful: it found something.
            most: steps to rest for.
        """
        self.looks_at = step + 1 + (0 if is_useful else min(most, self._next_rest))
        self._next_rest = 1 if is_useful else min(most, 2 * self._next_rest)
