"""How busy an engine is, as a value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One look at queues and blocks.

    Attributes:
        num_waiting: sequences without blocks: new or preempted.
        num_running: sequences that prefill, decode or wait for an import.
        num_waiting_tokens: tokens of all these that must be computed before their next output
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
