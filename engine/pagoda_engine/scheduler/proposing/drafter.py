"""What is needed of a draft model to have it propose."""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.speculation import ForwardTime


class Drafter(Protocol):
    """A draft model and its KV; see `pagoda_engine.drafting.drafter.Drafter`."""

    time: ForwardTime
    seconds: float

    def num_missing(self, sequence: Sequence) -> int:
        """Return how many of its tokens must be computed before one can be drafted."""
        ...

    def has_room(self, sequence: Sequence, num_drafted: int) -> bool:
        """Take blocks for a sequence and so many drafted tokens, if it can be drafted."""
        ...

    def catch_up(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the KV of its next tokens."""
        ...

    def draft(self, wanted: SequenceOf[tuple[Sequence, int]]) -> list[list[int]]:
        """Return so many tokens of each, those that want most first."""
        ...

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence."""
        ...

    def check_invariants(self, running: SequenceOf[Sequence]) -> None:
        """Recount."""
        ...
