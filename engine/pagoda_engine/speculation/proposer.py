"""What proposes the next tokens of one sequence. Whatever it says, the output stays the same."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Proposer(Protocol):
    """Follows the tokens of one sequence, which only ever grow.

    Asked in the step's thread before steps of its sequence, but while it rests, so it must answer
    at once.
    """

    def propose(self, max_tokens: int) -> Sequence[int]:
        """Return what probably follows the tokens as they are now; at most so many, maybe none."""
        ...


MakeProposer = Callable[[Sequence[int], int], Proposer]
"""(tokens of a sequence, which go on growing, most of them in the end) -> its proposer."""
