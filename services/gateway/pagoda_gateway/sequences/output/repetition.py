"""Whether an output has begun to say the same again and again. Knows token ids only."""

from collections.abc import Sequence
from dataclasses import dataclass

REPETITION = "repetition"
"""Why such an output has finished; vLLM's word."""
DETECTED = "repetition_detected"
"""What has ended it; vLLM's word, too."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """What counts as a repetition.

    Attributes:
        min_size, max_size: tokens of what is repeated.
        min_count: so many times it comes, one after the other.
    """

    min_size: int
    max_size: int
    min_count: int

    def ends(self, token_ids: Sequence[int]) -> bool:
        """Return whether an output ends with the same tokens so many times.

        Asked for each token; the time is that of one comparison for each size where nothing is
        repeated.
        """
        num_tokens = len(token_ids)
        for size in range(self.min_size, min(self.max_size, num_tokens // self.min_count) + 1):
            if token_ids[-1] == token_ids[-1 - size]:
                num_again = size * (self.min_count - 1)
                if token_ids[-num_again:] == token_ids[-num_again - size : -size]:
                    return True
        return False
