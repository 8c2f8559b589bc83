"""Turns a step that was read back into state: counts, reusable blocks, new tokens, ends.

Knows sequences and their queues. Knows nothing of tensors.
"""

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from pagoda_engine.sampling.sampler import INVALID, SampledToken
from pagoda_engine.sampling.token_logprobs import TokenLogprobs
from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.scheduler.scheduler import Scheduler
from pagoda_engine.scheduler.sequence import Sequence, SequenceState
from pagoda_engine.step.commit_beams import take_candidates
from pagoda_engine.step.launched import ReadStep
from pagoda_engine.step.outputs import (
    append_tokens,
    end_of,
    final_output,
    output_from,
    search_begun,
)
from pagoda_engine.step.result import ComputedBlocks, FinishReason, SequenceOutput

_NOT_FINITE = "the model's logits are not finite"
_NOT_FINITE_ADAPTER = (
    "with this adapter the model's logits are not finite: its weights are too large; ask for the "
    "model without it, or have it trained again"
)
_new_tuple = tuple.__new__  # of a class and all fields; a third of calling the class, or less


def fail(
    scheduler: Scheduler, sequence: Sequence, reason: FinishReason, error: str
) -> SequenceOutput:
    """End a sequence that can bring no further token."""
    sequence.has_ended = True
    _leave_steps(scheduler, sequence)
    return final_output(sequence, reason, error=error)


def _fail_not_finite(scheduler: Scheduler, sequence: Sequence) -> SequenceOutput:
    """End a sequence without logits; another engine would do no better with the same adapter."""
    if sequence.request.adapter:
        return fail(scheduler, sequence, FinishReason.INVALID, _NOT_FINITE_ADAPTER)
    return fail(scheduler, sequence, FinishReason.ERROR, _NOT_FINITE)


def commit_step(
    scheduler: Scheduler,
    batch: SequenceOf[ScheduledSequence],
    read: ReadStep,
) -> tuple[list[SequenceOutput], list[ComputedBlocks]]:
    """Advance every sequence of the batch that has not ended since the step was launched.

    One that was preempted since keeps its token; its KV is gone.

    Args:
        scheduler: owns the sequences.
        batch: what was computed.
        read: what the device found for it.
    """
    outputs: list[SequenceOutput] = []
    computed: list[ComputedBlocks] = []
    tokens: Iterator[SequenceOf[SampledToken] | int] = iter(read.tokens)
    scores = iter(read.prompt_logprobs)
    embeddings = iter(read.embeddings)
    blocks, running = scheduler.blocks, SequenceState.RUNNING  # looked up once: enums are slow
    block_size, has_window = blocks.block_size, blocks.has_window
    for scheduled in batch:
        sequence, _, _, is_prefill, samples, proposed = scheduled
        sampled = next(tokens) if samples else ()
        is_plain = sequence.is_plain and not (is_prefill or proposed) and sequence.state is running
        token_id = INVALID
        if is_plain:
            token_id = sampled if isinstance(sampled, int) else _bare_id(sampled)
        if token_id == INVALID:
            logprobs = tuple(itertools.islice(scores, len(scheduled.scored)))
            embedding = next(embeddings) if scheduled.embeds else b""
            if isinstance(sampled, int):
                sampled = (SampledToken(sampled, is_valid=sampled != INVALID),)
            others, blocks_computed = _commit(scheduler, scheduled, sampled, logprobs, embedding)
            outputs += others
            computed += blocks_computed
            continue
        # One token was computed, and one came of it: a step may have hundreds of these, so what
        # `_commit` does is done for less. What blocks are about, only where one is full, or a
        # window passes one.
        sequence.num_unread_tokens -= 1
        num_computed = sequence.num_computed_tokens + 1
        sequence.num_computed_tokens = num_computed
        if not num_computed % block_size:
            blocks.register_computed(sequence)
        if has_window:
            blocks.drop_behind_window(sequence)
        token_ids = sequence.token_ids
        num_tokens = len(token_ids)
        token_ids.append(token_id)
        reason = stop_token_id = limits = None
        if token_id in sequence.stop_token_ids or num_tokens + 1 >= sequence.max_num_tokens:
            reason = end_of(sequence)
            stop_token_id = token_id if reason is FinishReason.STOP else None
            sequence.has_ended = True
            scheduler.finish(sequence)
            limits = sequence.chunk_limits, sequence.proposal_limits
        fields = (
            sequence.request.sequence_id,
            num_tokens - sequence.num_prompt_tokens,
            (token_id,),
            (),
            reason,
            stop_token_id,
            "",
            0,
            (),
            b"",
            (),
            sequence.compute_ns,
            sequence.num_prefilled_tokens,
            sequence.num_proposed_tokens,
            sequence.num_accepted_tokens,
            limits,
        )
        outputs.append(_new_tuple(SequenceOutput, fields))
    return outputs, computed


def _commit(
    scheduler: Scheduler,
    scheduled: ScheduledSequence,
    sampled: SequenceOf[SampledToken],
    logprobs: tuple[TokenLogprobs, ...],
    embedding: bytes,
) -> tuple[list[SequenceOutput], list[ComputedBlocks]]:
    """Advance one sequence, whatever was computed of it."""
    outputs: list[SequenceOutput] = []
    computed: list[ComputedBlocks] = []
    sequence = scheduled.sequence
    if sequence.state is SequenceState.FINISHED:
        return [], []
    if sampled:
        sequence.num_unread_tokens -= 1
        sequence.num_unverified_tokens = 0
        sequence.num_proposed_tokens += len(scheduled.proposed)
        if not sampled[0].is_valid and scheduled.proposed:
            _try_alone(scheduler, scheduled)
            return [], []
        if not sampled[0].is_valid:
            # KV that may hold NaN must not be reused. Nor what earlier chunks left: attention
            # passes a NaN on to the tokens before it, where its weight is 0.
            scheduler.blocks.forget(sequence.leader)
            return [_fail_not_finite(scheduler, sequence.leader)], []
    if sequence.state is SequenceState.RUNNING:
        sequence.num_computed_tokens += scheduled.num_new_tokens - len(scheduled.proposed)
        scheduler.blocks.register_computed(sequence)
        if sequence.request.prefill_only:
            computed = _export(scheduler, sequence, is_last=bool(sampled))
        scheduler.blocks.drop_behind_window(sequence)
    if logprobs:
        outputs.append(
            SequenceOutput(
                sequence.sequence_id,
                first_index=sequence.num_output_tokens,
                token_ids=(),
                first_prompt_index=scheduled.scored.start,
                prompt_logprobs=logprobs,
            )
        )
    if sequence.beams is not None:
        if sampled and take_candidates(scheduler.blocks, sequence, sampled[0]):
            outputs.append(_commit_hypotheses(scheduler, sequence.leader))
        elif sampled and scheduled.is_prefill and sequence.state is SequenceState.RUNNING:
            outputs.append(search_begun(sequence))
    elif sampled:
        outputs.append(_commit_tokens(scheduler, scheduled, sampled, embedding))
    return outputs, computed


def _bare_id(sampled: SequenceOf[SampledToken]) -> int:
    """Return a single token's id if there is nothing else to be said of it; else INVALID."""
    if len(sampled) != 1 or sampled[0].logprobs is not None or not sampled[0].is_valid:
        return INVALID
    return sampled[0].token_id


def _try_alone(scheduler: Scheduler, scheduled: ScheduledSequence) -> None:
    """Compute a token again, with nothing proposed behind it.

    A NaN in the KV of what is proposed reaches the tokens before it, which are not to blame.
    """
    sequence = scheduled.sequence
    sequence.can_speculate = sequence.waits_for_tokens = False
    scheduler.stop_proposing(sequence)
    if sequence.state is SequenceState.RUNNING:
        sequence.num_launched_tokens = sequence.num_computed_tokens
        scheduler.blocks.trim(sequence)


def _commit_tokens(
    scheduler: Scheduler,
    scheduled: ScheduledSequence,
    sampled: SequenceOf[SampledToken],
    embedding: bytes,
) -> SequenceOutput:
    sequence = scheduled.sequence
    if embedding:
        output = final_output(sequence, FinishReason.STOP)._replace(embedding=embedding)
    elif sequence.request.sampling.max_tokens:
        first = len(sequence.token_ids)
        reason = append_tokens(sequence, [token.token_id for token in sampled])
        if scheduled.proposed:
            _keep_accepted(scheduler, sequence, len(sequence.token_ids) - first, len(sampled))
        output = output_from(sequence, first, reason)
        if scheduled.is_prefill:  # copies: this goes to another thread, and they go on
            limits = sequence.chunk_limits.copy(), sequence.proposal_limits.copy()
            output = output._replace(limits=limits)
    else:
        output = final_output(sequence, FinishReason.LENGTH)
    if output.token_ids and sampled[0].logprobs is not None:
        logprobs = (token.logprobs for token in sampled[: len(output.token_ids)])
        output = output._replace(logprobs=tuple(filter(None, logprobs)))
    sequence.has_ended = output.finish_reason is not None
    _leave_steps(scheduler, sequence)
    return output


def _commit_hypotheses(scheduler: Scheduler, sequence: Sequence) -> SequenceOutput:
    assert sequence.beams is not None
    hypotheses = tuple(sequence.beams.search.hypotheses)
    is_stop = hypotheses[0].matched_stop_token_id is not None
    reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
    output = final_output(sequence, reason)._replace(hypotheses=hypotheses)
    sequence.has_ended = True
    _leave_steps(scheduler, sequence)
    return output


def _keep_accepted(
    scheduler: Scheduler, sequence: Sequence, num_new: int, num_sampled: int
) -> None:
    """Count the proposed tokens that are output, whose KV is there; what the others had is free."""
    # The last one was not computed, nor was what is forced behind it.
    num_accepted = min(num_new, num_sampled) - 1
    sequence.num_accepted_tokens += num_accepted
    if sequence.state is SequenceState.RUNNING:
        sequence.num_launched_tokens += num_accepted
        sequence.num_computed_tokens += num_accepted
        scheduler.blocks.register_computed(sequence)
        scheduler.blocks.trim(sequence)


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
    num_partial = scheduler.blocks.num_partial(sequence, first, end)
    return [ComputedBlocks(sequence.sequence_id, first, block_ids, num_partial)]
