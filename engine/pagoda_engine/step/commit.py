"""Turns a step that was read back into state: counts, reusable blocks, new tokens, ends.

Knows sequences and their queues. Knows nothing of tensors.
"""

from collections.abc import Sequence as SequenceOf

from pagoda_engine.sampling.sampler import SampledToken
from pagoda_engine.scheduler.scheduler import ScheduledSequence, Scheduler
from pagoda_engine.scheduler.sequence import Sequence, SequenceState
from pagoda_engine.step.result import ComputedBlocks, FinishReason, SequenceOutput

_NOT_FINITE = "the model's logits are not finite"
_DEAD_END = "the grammar allows no token here"


def end_of(sequence: Sequence, token_id: int) -> FinishReason | None:
    """Tell whether this token, not yet appended, is the sequence's last."""
    may_stop = sequence.num_output_tokens >= sequence.request.sampling.min_tokens
    if may_stop and token_id in sequence.stop_token_ids:
        return FinishReason.STOP
    if len(sequence.token_ids) + 1 >= sequence.max_num_tokens:
        return FinishReason.LENGTH
    return None


def final_output(
    sequence: Sequence, reason: FinishReason, *, error: str = "", matched: int | None = None
) -> SequenceOutput:
    """Return the end of a sequence that brings no token."""
    return SequenceOutput(
        sequence_id=sequence.sequence_id,
        first_index=sequence.num_output_tokens,
        token_ids=(),
        finish_reason=reason,
        matched_stop_token_id=matched,
        error=error,
    )


def commit_step(
    scheduler: Scheduler, batch: SequenceOf[ScheduledSequence], sampled: SequenceOf[SampledToken]
) -> tuple[list[SequenceOutput], list[ComputedBlocks]]:
    """Advance every sequence of the batch that has not ended since the step was launched.

    One that was preempted since keeps its token; its KV is gone.

    Args:
        scheduler: owns the sequences.
        batch: what was computed.
        sampled: a token for each entry with ``samples``, in order.
    """
    outputs: list[SequenceOutput] = []
    computed: list[ComputedBlocks] = []
    tokens = iter(sampled)
    for scheduled in batch:
        sequence = scheduled.sequence
        token = next(tokens) if scheduled.samples else None
        if sequence.state is SequenceState.FINISHED:
            continue
        if token is not None:
            sequence.num_unread_tokens -= 1
            if not token.is_valid:
                # KV that may hold NaN must not be reused. Nor what earlier chunks left: attention
                # passes a NaN on to the tokens before it, where its weight is 0.
                if not token.is_dead_end:
                    scheduler.blocks.forget(sequence)
                error = _DEAD_END if token.is_dead_end else _NOT_FINITE
                outputs.append(final_output(sequence, FinishReason.ERROR, error=error))
                sequence.has_ended = True
                _leave_steps(scheduler, sequence)
                continue
        if sequence.state is SequenceState.RUNNING:
            sequence.num_computed_tokens += scheduled.num_new_tokens
            scheduler.blocks.register_computed(sequence)
            if sequence.request.prefill_only:
                computed.extend(_export(scheduler, sequence, is_last=token is not None))
        if token is not None:
            outputs.append(_commit_token(scheduler, sequence, token))
    return outputs, computed


def _commit_token(scheduler: Scheduler, sequence: Sequence, token: SampledToken) -> SequenceOutput:
    reason = end_of(sequence, token.token_id)
    output = SequenceOutput(
        sequence_id=sequence.sequence_id,
        first_index=sequence.num_output_tokens,
        token_ids=(token.token_id,),
        logprobs=() if token.logprobs is None else (token.logprobs,),
        finish_reason=reason,
        matched_stop_token_id=token.token_id if reason is FinishReason.STOP else None,
    )
    sequence.token_ids.append(token.token_id)
    sequence.has_ended = reason is not None
    _leave_steps(scheduler, sequence)
    return output


def _leave_steps(scheduler: Scheduler, sequence: Sequence) -> None:
    if sequence.request.prefill_only:  # someone may be reading what it has exported so far
        scheduler.hold(sequence)
    elif sequence.has_ended:
        scheduler.finish(sequence)


def _export(scheduler: Scheduler, sequence: Sequence, *, is_last: bool) -> list[ComputedBlocks]:
    end = scheduler.blocks.num_exportable(sequence.num_computed_tokens, is_last=is_last)
    first = sequence.num_exported_blocks
    if end <= first:
        return []
    sequence.num_exported_blocks = end
    block_ids = tuple(sequence.block_ids[first:end])
    return [ComputedBlocks(sequence.sequence_id, first, block_ids)]
