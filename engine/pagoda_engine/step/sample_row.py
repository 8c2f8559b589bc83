"""What the sampler is told of a sequence when a step is launched.

Knows sequences, grammars and token counts. Knows nothing of logits.
"""

from collections.abc import Sequence as SequenceOf

from pagoda_engine.errors import TokenMaskError
from pagoda_engine.models.model_folder import LoadedModel
from pagoda_engine.sampling import SampleRow, SamplingState, count_tokens
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.token_mask import TokenBits, token_bits


def drawn_row(sequence: Sequence) -> SampleRow:
    """Return the row for the next token of a sequence with plain rows."""
    index = sequence.num_tokens - sequence.num_prompt_tokens
    return SampleRow(sequence.sampling_state, index)


def sample_rows(sequence: Sequence, num_rows: int, model: LoadedModel) -> list[SampleRow]:
    """Return rows for the next tokens; counts tokens for penalties where they are not counted.

    Args:
        sequence: that samples.
        num_rows: 1, and one for each of its proposed tokens; see `Sequence.can_speculate`.
        model: that it is sampled from.

    Raises:
        TokenMaskError: no next token is allowed, or the grammar cannot tell which.
    """
    if sequence.greedy_row is not None:
        return [sequence.greedy_row] * num_rows
    state, num_prompt = sequence.sampling_state, sequence.num_prompt_tokens
    if state.has_penalties and state.counts is None:
        prompt, output = sequence.token_ids[:num_prompt], sequence.output_token_ids
        state.counts = count_tokens(state.params, prompt, output, model.vocab_size, model.device)
    index = sequence.num_tokens - num_prompt
    changes = state.repeat_changes(sequence.token_ids, model.vocab_size)
    if num_rows > 1 and sequence.request.token_mask is not None:
        masks, sequence.masks_ahead = sequence.masks_ahead, []
        known = state.allowed(model.vocab_size)
        return [
            SampleRow(state, i, _but_no_early_end(state, i, mask & known), changes)
            for i, mask in enumerate(masks[:num_rows], index)
        ]
    return [
        SampleRow(state, i, _allowed(sequence, i, model.vocab_size), changes)
        for i in range(index, index + num_rows)
    ]


def _allowed(sequence: Sequence, index: int, vocab_size: int) -> TokenBits | None:
    mask, state = sequence.request.token_mask, sequence.sampling_state
    params = state.params
    if mask is None and not params.allowed_token_ids and not params.bad_words:
        return None
    output = sequence.output_token_ids
    if mask is not None and (forced := mask.forced(output)):
        return token_bits(forced[:1], vocab_size)
    allowed = state.allowed(vocab_size)
    if mask is not None:
        allowed = mask.bitmask(output) & allowed
    if params.bad_words:
        allowed = allowed & ~token_bits(_bad(params.bad_words, output), vocab_size)
    if not allowed.any():
        causes = {
            "the grammar": mask is not None,
            "allowed_token_ids": params.allowed_token_ids,
            "bad_words": params.bad_words,
        }
        named = " and ".join(name for name, is_there in causes.items() if is_there)
        raise TokenMaskError(f"no next token is left by {named}")
    return _but_no_early_end(state, index, allowed)


def _but_no_early_end(state: SamplingState, index: int, allowed: TokenBits) -> TokenBits:
    """Return what may come there: before ``min_tokens`` the end only if nothing else may."""
    if index >= state.params.min_tokens:
        return allowed
    ends = token_bits(state.stop_token_ids, 32 * len(allowed))
    others = allowed & ~ends
    return others if others.any() else allowed


def _bad(words: SequenceOf[tuple[int, ...]], output: list[int]) -> list[int]:
    """Return the tokens that would complete one of the words."""
    return [
        word[-1] for word in words if output[max(0, len(output) + 1 - len(word)) :] == [*word[:-1]]
    ]
