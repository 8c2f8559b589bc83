"""Turns the scheduler's host lists into the AttentionBatch of one step, once for all layers.

Knows lengths and block tables. Knows nothing of heads, dtypes or which layers will read the batch.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagoda.kernels.attention_batch import AttentionBatch
from pagoda.kernels.cpu.plan import CpuPlan

PAD_SLOT = -1
"""Slot of a token whose KV must not be written."""

Int32Array = npt.NDArray[np.int32]


def plan_attention(
    *,
    seqlens_q: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    device: torch.device,
) -> AttentionBatch:
    """Build what every layer of one step reads. Copies to the device without waiting for it.

    Args:
        seqlens_q: new tokens of each sequence, >= 1.
        context_lens: KV tokens of each sequence, its new tokens included.
        block_tables: physical blocks of each sequence, in logical order; unneeded ones ignored.
        block_size: tokens per block.
        device: where the tensors of the result live.

    Raises:
        ValueError: lists of different lengths, a length out of range, or too few blocks.
    """
    _check_lengths(seqlens_q, context_lens, block_tables, block_size)
    num_seqs = len(seqlens_q)
    new = np.asarray(seqlens_q, dtype=np.int32)
    context = np.asarray(context_lens, dtype=np.int32)
    cu_seqlens_q = np.zeros(num_seqs + 1, dtype=np.int32)
    np.cumsum(new, out=cu_seqlens_q[1:])
    num_blocks = -(-context // block_size)
    tables = np.zeros((num_seqs, int(num_blocks.max(initial=1))), dtype=np.int32)
    for row, (used, block_table) in enumerate(zip(num_blocks.tolist(), block_tables, strict=True)):
        tables[row, :used] = block_table[:used]
    slots = _slot_mapping(cu_seqlens_q, new, context, tables, block_size)
    return AttentionBatch(
        cu_seqlens_q=_to_device(cu_seqlens_q, device),
        context_lens=_to_device(context, device),
        block_tables=_to_device(tables, device),
        slot_mapping=_to_device(slots, device),
        seqlens_q_host=tuple(new.tolist()),
        context_lens_host=tuple(context.tolist()),
        block_size=block_size,
        cpu_plan=CpuPlan(cu_seqlens_q, new, context, tables, block_size)
        if device.type == "cpu"
        else None,
    )


def _slot_mapping(
    cu_seqlens_q: Int32Array,
    new: Int32Array,
    context: Int32Array,
    tables: Int32Array,
    block_size: int,
) -> npt.NDArray[np.int64]:
    seq = np.repeat(np.arange(len(new)), new)
    positions = np.arange(len(seq)) - np.repeat(cu_seqlens_q[1:] - context, new)
    return tables[seq, positions // block_size].astype(np.int64) * block_size + (
        positions % block_size
    )


def _to_device(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def _check_lengths(
    seqlens_q: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
) -> None:
    if not len(seqlens_q) == len(context_lens) == len(block_tables):
        raise ValueError(
            "expected as many seqlens_q as context_lens and block_tables, got "
            f"{len(seqlens_q)}, {len(context_lens)}, {len(block_tables)}"
        )
    if block_size < 1:
        raise ValueError(f"block_size: expected >= 1, got {block_size}")
    for row, (new, context) in enumerate(zip(seqlens_q, context_lens, strict=True)):
        if not 1 <= new <= context:
            raise ValueError(f"sequence {row}: expected 1 <= seqlen_q <= {context}, got {new}")
        if len(block_tables[row]) * block_size < context:
            raise ValueError(
                f"sequence {row}: expected >= {-(-context // block_size)} blocks for {context} "
                f"tokens, got {len(block_tables[row])}"
            )
