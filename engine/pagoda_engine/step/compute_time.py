"""Whose time a step was: its measured nanoseconds, shared out over the sequences that it computed.

Knows sequences. Knows nothing of tensors and clocks.
"""

from collections.abc import Sequence as SequenceOf

from pagoda_engine.scheduler.scheduled import IS_PREFILL, NUM_NEW_TOKENS, ScheduledSequence


def share_out(batch: SequenceOf[ScheduledSequence], nanoseconds: int) -> int:
    """Charge a step that was read, by tokens; the shares sum to what was measured, exactly.

    Those that ended while the device computed them for nothing have had their last output: the
    others of the batch bear it. Returns what nobody can be charged for, since all have ended.
    """
    charged = [entry for entry in batch if not entry[0].has_ended]
    if not charged:
        return nanoseconds
    num_tokens = sum(map(NUM_NEW_TOKENS, charged))
    share, rest = divmod(nanoseconds, num_tokens)
    charged[0].sequence.compute_ns += rest  # less than a nanosecond a token
    for entry in charged:  # one token each: most have no other
        entry[0].compute_ns += share
    if num_tokens > len(charged):
        for sequence, _, num_new_tokens, _, _, _ in charged:
            sequence.compute_ns += share * (num_new_tokens - 1)
    for entry in filter(IS_PREFILL, charged):
        entry.sequence.num_prefilled_tokens += entry.num_new_tokens
    return 0
