"""How long a step takes, as far as the scheduler must know. Knows numbers only."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step takes base + per_decode * decodes + what its tokens of prompts take (`of_prompt`).

    And `proposed` for each proposed token that it verifies. per_prefill_token is above 0.

    Only what they are to each other matters, so the unit is whoever's who measured. The defaults
    are about those of a CPU; they hold until something was measured. Who measured in seconds says
    so: what a draft model takes can be compared with nothing else.

    Attributes:
        base: of a step.
        per_decode: of each sequence that decodes.
        per_prefill_token: of each token of a prompt, whatever is before it.
        per_proposed_token: of each proposed token.
        per_attended_token: of each token of a prompt for each token that it attends to: of a long
            prompt the last tokens take many times what the first ones do.
        per_context_token: of a chunk of a prompt for each token of its context, whose KV is read
            once for all of the chunk's tokens.
        fetch_base: of a fetch of blocks from a lower tier.
        per_fetched_block: of each of its blocks; infinite: nothing can be fetched, as far as is
            known.
        is_seconds: that is the unit.
        proposed_by_batch: as per_proposed_token, by the number of decodes (see `proposed`).
    """

    base: float = 8.0
    per_decode: float = 1.0
    per_prefill_token: float = 0.35
    per_proposed_token: float = 0.5
    per_attended_token: float = 0.0
    per_context_token: float = 0.0
    fetch_base: float = 0.0
    per_fetched_block: float = math.inf
    is_seconds: bool = False
    proposed_by_batch: tuple[float, ...] = ()

    def proposed(self, num_decodes: int) -> float:
        """Return what a proposed token adds to a step of so many decodes, at least 1.

        It is ``proposed_by_batch[i]`` for 2**i and more, as far as that was measured.
        """
        index = num_decodes.bit_length() - 1
        if index < len(self.proposed_by_batch):
            return self.proposed_by_batch[index]
        return self.per_proposed_token

    def of(self, *, num_decodes: int, num_prefill_tokens: int) -> float:
        """Return the time of a step whose prompts are short."""
        return self.base + self.work(num_decodes, num_prefill_tokens)

    def work(self, num_decodes: int, num_prefill_tokens: int) -> float:
        """Return what these make a step longer by, with short prompts."""
        return self.per_decode * num_decodes + self.per_prefill_token * num_prefill_tokens

    def of_prompt(self, first_token: int, num_tokens: int) -> float:
        """Return what tokens [first_token, first_token + num_tokens) of a prompt take at once."""
        num_attended = attended_tokens(first_token, num_tokens)
        work = self.per_prefill_token * num_tokens + self.per_attended_token * num_attended
        return work + self.per_context_token * (first_token + num_tokens) if num_tokens else 0.0

    def of_fetch(self, num_blocks: int) -> float:
        """Return what blocks of a lower tier take until they are here."""
        return self.fetch_base + self.per_fetched_block * num_blocks if num_blocks else 0.0

    def tokens_within(self, work: float, first_token: int) -> int:
        """Return how many tokens of a prompt, from `first_token` on, take no more than `work`."""
        work *= 1 + 1e-9  # a sum of n times something is n of it
        work -= self.per_context_token * first_token
        if work <= 0.0:
            return 0
        # work = linear * n + square * n * n
        linear = self.per_prefill_token + self.per_context_token
        linear += self.per_attended_token * (first_token + 0.5)
        square = self.per_attended_token / 2
        # The usual formula turned over: it does not divide by a square that is nearly 0.
        return int(2 * work / (linear + math.sqrt(linear * linear + 4 * square * work)))


def attended_tokens(first_token: int, num_tokens: int) -> int:
    """Return what tokens [first_token, first_token + num_tokens) attend to, summed up."""
    return num_tokens * first_token + num_tokens * (num_tokens + 1) // 2
