"""Tokens that come of a step: appended to their sequence, and the outputs that say so.

Knows sequences. Knows nothing of queues, blocks and tensors.
"""

from collections.abc import Sequence as SequenceOf

from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.step.result import FinishReason, SequenceOutput


def take_tokens(sequence: Sequence, token_ids: SequenceOf[int]) -> SequenceOutput:
    """Append tokens and those that its grammar forces after them, up to the end."""
    first = len(sequence.token_ids)
    reason = append_tokens(sequence, token_ids)
    return output_from(sequence, first, reason)


def final_output(sequence: Sequence, reason: FinishReason, *, error: str = "") -> SequenceOutput:
    """Return the end of a sequence that brings no token."""
    return SequenceOutput(
        sequence_id=sequence.sequence_id,
        first_index=0 if sequence.beams is not None else sequence.num_output_tokens,
        token_ids=(),
        finish_reason=reason,
        error=error,
        compute_ns=sequence.compute_ns,
        num_prefilled_tokens=sequence.num_prefilled_tokens,
        num_proposed_tokens=sequence.num_proposed_tokens,
        num_accepted_tokens=sequence.num_accepted_tokens,
        limits=(sequence.chunk_limits, sequence.proposal_limits),
    )


def search_begun(sequence: Sequence) -> SequenceOutput:
    """Return what says that the prompt of a beam search is computed: it has no token to say so."""
    return SequenceOutput(
        sequence_id=sequence.sequence_id,
        first_index=0,
        token_ids=(),
        compute_ns=sequence.compute_ns,
        num_prefilled_tokens=sequence.num_prefilled_tokens,
        limits=(sequence.chunk_limits.copy(), sequence.proposal_limits.copy()),
    )


def output_from(sequence: Sequence, first: int, reason: FinishReason | None) -> SequenceOutput:
    """Return the tokens from `first` on as output."""
    return SequenceOutput(
        sequence_id=sequence.sequence_id,
        first_index=first - sequence.num_prompt_tokens,
        token_ids=tuple(sequence.token_ids[first:]),
        finish_reason=reason,
        matched_stop_token_id=sequence.token_ids[-1] if reason is FinishReason.STOP else None,
        compute_ns=sequence.compute_ns,
        num_prefilled_tokens=sequence.num_prefilled_tokens,
        num_proposed_tokens=sequence.num_proposed_tokens,
        num_accepted_tokens=sequence.num_accepted_tokens,
        limits=None if reason is None else (sequence.chunk_limits, sequence.proposal_limits),
    )


def append_tokens(sequence: Sequence, token_ids: SequenceOf[int]) -> FinishReason | None:
    """Append tokens and those that are forced after them; return why the last is, if it is."""
    for token_id in token_ids:
        reason = _append(sequence, token_id)
        if reason is not None:
            return reason
    if sequence.request.token_mask is not None:
        for forced_id in _forced_next(sequence):
            reason = _append(sequence, forced_id)
            sequence.sampling_state.counts = None  # they lack it: a step counts what it samples
            if reason is not None:
                return reason
    return None


def _append(sequence: Sequence, token_id: int) -> FinishReason | None:
    """Append a token; returns why it is the last, if it is.

    No stop token is sampled before ``min_tokens``, unless the grammar leaves nothing else.
    """
    sequence.token_ids.append(token_id)
    return end_of(sequence)


def end_of(sequence: Sequence) -> FinishReason | None:
    """Return why a sequence's last token is its last, if it is."""
    if sequence.token_ids[-1] in sequence.stop_token_ids:
        return FinishReason.STOP
    if len(sequence.token_ids) >= sequence.max_num_tokens:
        return FinishReason.LENGTH
    return None


def _forced_next(sequence: Sequence) -> SequenceOf[int]:
    """Return tokens that need no logits; where each needs its own, the sampler is forced instead.

    A ``prefill_only`` sequence samples one token: whoever goes on with it appends what is forced.
    """
    request = sequence.request
    needs_logits = request.prefill_only or request.sampling.num_logprobs is not None
    if request.token_mask is None or needs_logits:
        return ()
    return request.token_mask.forced(sequence.output_token_ids)
