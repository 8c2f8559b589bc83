"""What the next step computes of whom. Knows sequences, and not why they were chosen."""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from pagoda_engine.scheduler.resumption import Preemption, Resumption
from pagoda_engine.scheduler.sequence import Sequence

FIRST_TOKEN, NUM_NEW_TOKENS, IS_PREFILL = map(itemgetter, (1, 2, 3))
"""Fields of a `ScheduledSequence`, for sums over hundreds of them."""


class ScheduledSequence(NamedTuple):
    """Compute tokens [first_token, first_token + num_new_tokens) of a sequence.

    A tuple, since each step makes one for each of its rows.

    Attributes:
        sequence: its counts change when the step is launched, and again when it is read.
        first_token: the first token whose KV is missing.
        num_new_tokens: at least 1.
        is_prefill: the tokens were known at admission; else it is the decode of one sampled token
            and of those that a grammar forced after it.
        samples: the chunk reaches the last token, so its logits give the next one.
        proposed: tokens computed behind it, to be verified: each gives one more if it is right.
    """

    sequence: Sequence
    first_token: int
    num_new_tokens: int
    is_prefill: bool
    samples: bool
    proposed: tuple[int, ...] = ()

    @staticmethod
    def of_decodes(decodes: SequenceOf[Sequence]) -> "Iterator[ScheduledSequence]":
        """Yield what computes one token of each, and samples one more, with nothing proposed."""
        first_tokens = [sequence.num_launched_tokens for sequence in decodes]
        columns = first_tokens, repeat(1), repeat(False), repeat(True), repeat(())
        # Of all fields: a fifth of calling the class.
        fields = zip(decodes, *columns, strict=False)
        return map(tuple.__new__, repeat(ScheduledSequence), fields)

    @property
    def num_rows(self) -> int:
        """Tokens that are sampled: the next one, and one behind each proposed token."""
        return 1 + len(self.proposed) if self.samples else 0

    @property
    def num_context_tokens(self) -> int:
        """KV tokens that its attention reads, the new ones included."""
        return self.first_token + self.num_new_tokens

    @property
    def embeds(self) -> bool:
        """Whether the hidden state of its last token is asked for."""
        return self.is_prefill and self.samples and self.sequence.request.sampling.embed

    @property
    def scored(self) -> range:
        """Prompt tokens whose logprobs its logits give: each token's come from the one before."""
        sequence = self.sequence
        if not self.is_prefill or sequence.request.sampling.num_prompt_logprobs is None:
            return range(0)
        return range(
            self.first_token + 1, min(self.num_context_tokens + 1, sequence.num_prompt_tokens)
        )


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """What one step computes, and whom it admitted or preempted on the way."""

    batch: tuple[ScheduledSequence, ...]
    reserved: tuple[Sequence, ...]
    preempted: tuple[Preemption, ...] = ()
    resumed: tuple[Resumption, ...] = ()

    @property
    def num_preempted(self) -> int:
        """Sequences that lost their blocks."""
        return len(self.preempted)

    @property
    def has_imports(self) -> bool:
        """Whether somebody is to write into blocks that it reserved."""
        return any(s.is_import_pending for s in self.reserved) or any(
            resumption.fetched for resumption in self.resumed
        )
