"""What a step found for the beams of a search: which of them are followed from here on.

Knows sequences and their blocks. Knows nothing of tensors, queues or of how beams are chosen.
"""

from pagoda_engine.sampling.sampler import SampledToken
from pagoda_engine.scheduler.sequence import Sequence, SequenceState
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks


def take_candidates(blocks: SequenceBlocks, sequence: Sequence, sampled: SampledToken) -> bool:
    """Take what one beam may go on with; with the last one's the search advances.

    What comes for a search that has lost its blocks since is dropped: it has begun again.

    Args:
        blocks: of the scheduler.
        sequence: a member of the search.
        sampled: with log probabilities of all the candidates.

    Returns:
        Whether the search is over.
    """
    leader, beams = sequence.leader, sequence.beams
    assert beams is not None
    if leader.state is not SequenceState.RUNNING:
        return False
    assert sampled.logprobs is not None
    beams.sampled.append(sampled.logprobs)
    members = leader.members
    if len(beams.sampled) < len(members):
        return False
    for sibling in leader.siblings:
        leader.compute_ns += sibling.compute_ns
        sibling.compute_ns = 0
    search = beams.search
    search.advance([logprobs.top for logprobs in beams.sampled])
    beams.sampled = []
    if search.is_over:
        return True
    while len(leader.siblings) < search.width - 1:
        leader.add_sibling()
    blocks.fork(leader, [beam.parent for beam in search.beams])
    prompt = leader.token_ids[: leader.num_prompt_tokens]
    for member, beam in zip(leader.members, search.beams, strict=True):
        member.token_ids = prompt + list(beam.token_ids)
    return False
