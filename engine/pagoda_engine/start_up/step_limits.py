"""How much one step computes at most, where the options leave it open.

A larger step uses a device better; its activations take memory from the KV pool, and the sequences
that decode wait for it. Knows numbers. Knows no torch.
"""

from dataclasses import dataclass

MAX_ROOM_SHARE = 1 / 4
"""Part of the memory beside the weights that the largest step may take of itself."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step."""

    max_num_seqs: int
    max_num_batched_tokens: int

    def __str__(self) -> str:
        return f"{self.max_num_batched_tokens} tokens of {self.max_num_seqs} sequences"


CPU_LIMITS = StepLimits(max_num_seqs=64, max_num_batched_tokens=512)
CPU_ENOUGH_PROMPT_TOKENS = 128
"""From some 60 on products take as long as their arithmetic; see `EngineConfig`."""
CUDA_LIMITS = StepLimits(max_num_seqs=256, max_num_batched_tokens=8192)


def cuda_limits(*, room_bytes: int, token_bytes: int, row_bytes: int) -> StepLimits:
    """Return CUDA_LIMITS, or halves of them until the step's estimated memory is small enough.

    Never below CPU_LIMITS: what does not fit then is refused once it has been measured.

    Args:
        room_bytes: what the weights leave of the worker's share.
        token_bytes: activations of one new token, in the widest layer.
        row_bytes: logits of one sequence and what sampling makes of them.
    """
    limits = CUDA_LIMITS
    while limits != CPU_LIMITS:
        tokens, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        if tokens * token_bytes + seqs * row_bytes <= room_bytes * MAX_ROOM_SHARE:
            break
        limits = StepLimits(
            max(seqs // 2, CPU_LIMITS.max_num_seqs),
            max(tokens // 2, CPU_LIMITS.max_num_batched_tokens),
        )
    return limits
