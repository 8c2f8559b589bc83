"""How busy an engine is, as a value."""

from dataclasses import dataclass

from pagoda_engine.cache.block_pool import BlockPool
from pagoda_engine.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One look at queues and blocks.

    Attributes:
        num_waiting: sequences without blocks: new or preempted.
        num_running: sequences that prefill, decode or wait for an import; a beam search counts as
            one for each beam.
        num_waiting_tokens: tokens of all these that must be computed here before their next output
            token, except for the one that every decode computes anyway.
        num_blocks: blocks of the pool.
        num_free_blocks: blocks that nobody holds, reusable cached ones included.
        num_context_tokens: KV tokens of running sequences.
    """

    num_waiting: int
    num_running: int
    num_waiting_tokens: int
    num_blocks: int
    num_free_blocks: int
    num_context_tokens: int

    @classmethod
    def of(cls, scheduler: Scheduler, pool: BlockPool) -> "EngineLoad":
        """Count what waits, runs and is held."""
        waiting_tokens = sum(len(s.token_ids) for s in scheduler.waiting if not s.is_handed_over)
        context_tokens = sum([s.num_computed_tokens for s in scheduler.running])
        others = [  # plain decodes lack one token, which they compute anyway
            s for s in scheduler.running if not s.is_plain or s.num_launched_tokens < s.prefill_end
        ]
        for sequence in others:
            waiting_tokens += sequence.num_uncomputed_tokens - (not sequence.is_prefilling)
            context_tokens += sequence.num_computed_tokens * len(sequence.siblings)
        for sequence in scheduler.importing.values():
            if sequence.is_handed_over:
                continue
            waiting_tokens += sequence.num_uncomputed_tokens - (not sequence.is_prefilling)
        return cls(
            num_waiting=len(scheduler.waiting),
            num_running=scheduler.num_taken_seats,
            num_waiting_tokens=waiting_tokens,
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free_blocks,
            num_context_tokens=context_tokens,
        )
