"""What one step's batch looks like to the model: flat lists, one entry per new token.

A snapshot: sequences go on changing while the device computes. Knows sequences and block tables.
Knows nothing of tensors.
"""

import bisect
import itertools
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.scheduler.sequence import NO_ADAPTER

KNOWN = -1
"""Previous row of a token that the host knows."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """S sequences with T new tokens, R of which give the logits of a token to sample.

    Attributes:
        token_ids: T tokens; 0 where the host does not know it yet.
        previous_rows: for each of the T tokens KNOWN, or its row in the tokens of the step launched
            before.
        positions: T positions.
        seqlens_q: new tokens of each sequence.
        context_lens: KV tokens of each sequence, the new ones included.
        block_tables: of each sequence. Not copied: to be read before the step loop goes on.
        windowed: of each sequence which of its blocks it holds with their windowed parts.
        logit_rows: R of the T rows: of each sequence that samples its last known token's, and those
            of its proposed tokens.
        scored_rows: those of the T rows whose next token is of the prompt, and asked for.
        scored_token_ids: the next token of each scored row.
        scored_nums: alternatives that each scored row asks for.
        embedded: those of the R rows whose hidden state is asked for.
        adapters: for each of the T tokens the slot of its sequence's adapter, or NO_ADAPTER.
    """

    token_ids: list[int]
    previous_rows: list[int]
    positions: list[int]
    seqlens_q: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    windowed: list[range]
    logit_rows: list[int]
    scored_rows: list[int]
    scored_token_ids: list[int]
    scored_nums: list[int]
    embedded: list[int]
    adapters: list[int]

    @property
    def has_adapters(self) -> bool:
        """Whether an adapter adds to any token."""
        return self.adapters.count(NO_ADAPTER) < len(self.adapters)

    def of_logit_rows(self) -> "tuple[list[int], StepInputs]":
        """Return which sequences have some, and their lengths and blocks in inputs of no others.

        As if these rows were all their new tokens; lists of tokens stay as they are.
        """
        until = [
            bisect.bisect_left(self.logit_rows, end) for end in itertools.accumulate(self.seqlens_q)
        ]
        nums = [end - begin for begin, end in itertools.pairwise([0, *until])]
        some = [i for i, num in enumerate(nums) if num]
        return some, replace(
            self,
            seqlens_q=[nums[i] for i in some],
            context_lens=[self.context_lens[i] for i in some],
            block_tables=[self.block_tables[i] for i in some],
            windowed=[self.windowed[i] for i in some],
        )

    @property
    def has_unread(self) -> bool:
        """Whether a token must be taken from the step before."""
        return self.previous_rows.count(KNOWN) < len(self.previous_rows)


def flatten(batch: SequenceOf[ScheduledSequence]) -> StepInputs:
    """Return the inputs of a batch that is not launched yet."""
    are_not = (
        i
        for i, (_, _, num_new_tokens, is_prefill, samples, _) in enumerate(batch)
        if is_prefill or num_new_tokens > 1 or not samples
    )
    num_decodes = next(are_not, len(batch))
    inputs = _of_decodes(batch[:num_decodes])
    for entry in batch[num_decodes:]:
        sequence, end = entry.sequence, entry.num_context_tokens
        known = sequence.token_ids[entry.first_token : end]
        if scored := entry.scored:
            first_row = len(inputs.token_ids) + scored.start - 1 - entry.first_token
            inputs.scored_rows.extend(range(first_row, first_row + len(scored)))
            inputs.scored_token_ids.extend(sequence.token_ids[scored.start : scored.stop])
            num = sequence.request.sampling.num_prompt_logprobs
            inputs.scored_nums.extend([num or 0] * len(scored))
        inputs.token_ids.extend(known)
        inputs.previous_rows.extend([KNOWN] * len(known))
        if entry.proposed:
            inputs.token_ids.extend(entry.proposed)
            inputs.previous_rows.extend([KNOWN] * len(entry.proposed))
        elif len(known) < entry.num_new_tokens:  # a decode of a token still on the device
            inputs.token_ids.append(0)
            inputs.previous_rows.append(sequence.unread_row)
        inputs.adapters.extend([sequence.adapter_slot] * entry.num_new_tokens)
        inputs.positions.extend(range(entry.first_token, end))
        inputs.seqlens_q.append(entry.num_new_tokens)
        inputs.context_lens.append(end)
        inputs.block_tables.append(sequence.block_ids)
        inputs.windowed.append(sequence.windowed)
        if entry.embeds:
            inputs.embedded.append(len(inputs.logit_rows))
        if entry.samples:
            num_tokens = len(inputs.token_ids)
            inputs.logit_rows.extend(range(num_tokens - entry.num_rows, num_tokens))
    return inputs


def _of_decodes(batch: SequenceOf[ScheduledSequence]) -> StepInputs:
    """Return the inputs of decodes of one token that samples: a step may have hundreds."""
    sequences = [entry.sequence for entry in batch]
    positions = [entry.first_token for entry in batch]
    token_ids, previous_rows = list[int](), [KNOWN] * len(batch)
    for row, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
        if position < len(sequence.token_ids):
            token_ids.append(sequence.token_ids[position])
        else:
            token_ids.append(0)
            previous_rows[row] = sequence.unread_row
    return StepInputs(
        token_ids,
        previous_rows,
        positions,
        seqlens_q=[1] * len(batch),
        context_lens=[position + 1 for position in positions],
        block_tables=[sequence.block_ids for sequence in sequences],
        windowed=[sequence.windowed for sequence in sequences],
        logit_rows=[*range(len(batch))],
        scored_rows=[],
        scored_token_ids=[],
        scored_nums=[],
        embedded=[],
        adapters=[sequence.adapter_slot for sequence in sequences],
    )
