"""What is true of a sequence and its blocks between any two steps, recounted."""

from pagoda_engine.scheduler.sequence import Sequence, SequenceState
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks


def check_sequence(sequence: Sequence, blocks: SequenceBlocks) -> None:
    """Raise AssertionError unless counts, tokens and blocks of a sequence fit each other."""
    size = blocks.block_size
    num_tokens, num_computed = sequence.num_tokens, sequence.num_computed_tokens
    num_launched = sequence.num_launched_tokens
    num_written = num_launched + sequence.num_unverified_tokens
    assert num_written <= len(sequence.block_ids) * size, "KV without a block"
    assert num_computed <= min(num_launched, len(sequence.token_ids))
    assert sequence.num_registered_blocks * size <= num_computed
    if sequence.state is SequenceState.WAITING:
        assert not sequence.block_ids
        assert not sequence.windowed
        assert num_written == 0
        assert sequence.guesses is None
        return
    if not sequence.has_ended:
        num_needed = max(num_tokens, num_written)
        assert len(sequence.block_ids) <= blocks.num_blocks_for(num_needed), "a block more"
    if sequence.num_unverified_tokens:
        assert sequence.can_speculate
        assert sequence.num_unread_tokens, "what was read has no proposals left"
    assert len(set(sequence.held_block_ids)) == len(sequence.held_block_ids)
    assert sequence.num_null_blocks <= len(sequence.block_ids)
    if sequence.state is SequenceState.RUNNING:
        first = blocks.first_needed_block(sequence, num_computed)
        assert sequence.num_null_blocks <= first, "a query to come sees what was given back"
    assert num_launched < num_tokens or sequence.has_ended, "nothing left to compute"
    # With max_tokens 0 one token is sampled all the same.
    assert num_tokens <= max(sequence.max_num_tokens, sequence.num_prompt_tokens + 1)
    if sequence.state is SequenceState.RUNNING and not sequence.is_prefilling:
        has_forced = sequence.num_uncomputed_tokens > 1
        assert not has_forced or sequence.request.token_mask, "a decode fell behind"
    assert sequence.num_cached_tokens % size == 0
    assert sequence.num_cached_tokens <= num_computed
    # Blocks that this sequence may still write are its own.
    for member in sequence.members:
        blocks.check_parts(member, num_written)
        assert member.num_null_blocks == sequence.num_null_blocks
        for block_id in member.block_ids[max(member.num_null_blocks, num_computed // size) :]:
            assert blocks.pool.ref_count(block_id) == 1, f"block {block_id} is shared"
    for sibling in sequence.siblings:
        assert sequence.state is sibling.state is SequenceState.RUNNING
        assert sibling.leader is sequence
        assert sibling.token_ids[: sequence.num_prompt_tokens] == [
            *sequence.request.prompt_token_ids
        ]
        assert len(sibling.token_ids) == len(sequence.token_ids), "a beam fell behind"
        assert sibling.num_unread_tokens == sequence.num_unread_tokens
        assert sibling.num_launched_tokens == num_launched
        assert sibling.num_computed_tokens == num_computed
        assert num_computed // size <= len(sibling.block_ids) <= blocks.num_blocks_for(num_tokens)
    assert len(sequence.members) <= sequence.num_seats
