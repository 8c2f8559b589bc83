"""What one step's attention needs to know about its sequences: built once, read by every layer.

Knows block tables and lengths. Knows nothing of models, sampling or the scheduler.
"""

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Batch of S sequences with T new tokens in all; prefill chunks and decodes mixed.

    Sequence i owns the new tokens ``[cu_seqlens_q[i], cu_seqlens_q[i + 1])``; its last new token
    sits at position ``context_lens[i] - 1``. KV of the new tokens is written to the cache before
    attention runs.

    Attributes:
        cu_seqlens_q: ``[S + 1]`` int32 on the device, prefix sums of new tokens.
        context_lens: ``[S]`` int32 on the device, KV tokens of each sequence, new ones included.
        block_tables: ``[S, max_blocks]`` int32 on the device, logical -> physical; unused are 0.
        slot_mapping: ``[T]`` int64 on the device, ``block_id * block_size + offset`` or PAD_SLOT.
        seqlens_q_host: new tokens per sequence, on the host, so that no step waits for a copy.
        context_lens_host: bounds of ``context_lens``, on the host: the same numbers from
            ``plan_attention``, the longest allowed from ``decode_batch``.
        block_size: tokens per block.
        cpu_plan: what the CPU path gathers; None on CUDA.
        others: the same sequences with other block tables and slots, for layers whose KV lies in
            other blocks.
    """

    cu_seqlens_q: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    seqlens_q_host: tuple[int, ...]
    context_lens_host: tuple[int, ...]
    block_size: int
    cpu_plan: Any = field(default=None, repr=False)
    others: tuple["AttentionBatch", ...] = ()

    def of_group(self, group: int) -> "AttentionBatch":
        """Return what the layers of a group read: 0 is this one, the rest are `others`."""
        return self.others[group - 1] if group else self
