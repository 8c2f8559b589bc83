"""How long a step takes, as far as the scheduler must know. Knows numbers only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step takes base + per_decode * decodes + per_prefill_token * tokens of prompts.

    And `proposed` for each proposed token that it verifies. per_prefill_token is above 0.

    Only what they are to each other matters, so the unit is whoever's who measured. The defaults
    are about those of a CPU; they hold until something was measured. Who measured in seconds says
    so: what a draft model takes can be compared with nothing else.
    """

    base: float = 8.0
    per_decode: float = 1.0
    per_prefill_token: float = 0.35
    per_proposed_token: float = 0.5
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
        """Return the time of a step."""
        return self.base + self.work(num_decodes, num_prefill_tokens)

    def work(self, num_decodes: int, num_prefill_tokens: int) -> float:
        """Return what these make a step longer by."""
        return self.per_decode * num_decodes + self.per_prefill_token * num_prefill_tokens
