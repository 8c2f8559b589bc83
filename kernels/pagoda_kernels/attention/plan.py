"""Turns the scheduler's host lists into the AttentionBatch of one step, once for all layers.

Knows lengths and block tables. Knows nothing of heads, dtypes or which layers will read the batch.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.cpu_plan import CpuPlan, RefilledPlan
from pagoda_kernels.checks import check_shape
from pagoda_kernels.host_copy import to_device

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
    tables: Int32Array | None = None,
    other_tables: Sequence[Int32Array] = (),
) -> AttentionBatch:
    """Build what every layer of one step reads. Copies to the device without waiting for it.

    Args:
        seqlens_q: new tokens of each sequence, >= 1.
        context_lens: KV tokens of each sequence, its new tokens included.
        block_tables: physical blocks of each sequence, in logical order; unneeded ones ignored.
        block_size: tokens per block.
        device: where the tensors of the result live.
        tables: ``[S, any]``, the same as one array, which must not change afterwards; what is
            behind a sequence's blocks means nothing. None: it is made here.
        other_tables: ``[S, any]`` each, the block tables of `AttentionBatch.others`; what is behind
            their end is not read.

    Raises:
        ValueError: lists of different lengths, a length out of range, or too few blocks.
    """
    _check_lengths(seqlens_q, context_lens, block_tables, block_size)
    num_seqs = len(seqlens_q)
    new = np.asarray(seqlens_q, dtype=np.int32)
    context = np.asarray(context_lens, dtype=np.int32)
    cu_seqlens_q = np.zeros(num_seqs + 1, dtype=np.int32)
    np.cumsum(new, out=cu_seqlens_q[1:])
    if tables is None:
        tables = _as_array(block_tables, context, block_size)
    all_tables = [tables, *other_tables]
    rows, columns, offsets = _where_new(cu_seqlens_q, new, context, block_size)
    slots = [each[rows, columns].astype(np.int64) * block_size + offsets for each in all_tables]
    on_device = to_device((cu_seqlens_q, context, *all_tables, *slots), device)
    first_slots = 2 + len(all_tables)
    new_host, context_host = tuple(new.tolist()), tuple(context.tolist())
    batches = [
        AttentionBatch(
            cu_seqlens_q=on_device[0],
            context_lens=on_device[1],
            block_tables=on_device[2 + i],
            slot_mapping=on_device[first_slots + i],
            seqlens_q_host=new_host,
            context_lens_host=context_host,
            block_size=block_size,
            cpu_plan=CpuPlan(cu_seqlens_q, new, context, each, block_size)
            if device.type == "cpu"
            else None,
        )
        for i, each in enumerate(all_tables)
    ]
    return replace(batches[0], others=tuple(batches[1:])) if other_tables else batches[0]


def _as_array(
    block_tables: Sequence[Sequence[int]], context: Int32Array, block_size: int
) -> Int32Array:
    num_blocks = -(-context // block_size)
    tables = np.zeros((len(context), int(num_blocks.max(initial=1))), dtype=np.int32)
    for row, (used, block_table) in enumerate(zip(num_blocks.tolist(), block_tables, strict=True)):
        tables[row, :used] = block_table[:used]
    return tables


def decode_batch(
    *,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    slot_mapping: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    block_size: int,
    max_context_len: int,
) -> AttentionBatch:
    """Build a batch of B decodes over buffers that the caller refills in place between forwards.

    For CUDA graphs: nothing that a launch is shaped by depends on what the buffers hold, only on B
    and `max_context_len`. On CPU every forward reads the buffers again. A row that pads the batch
    has a context of 1, a block table that begins with any block, and PAD_SLOT: it writes nothing,
    reads one token, and its output means nothing.

    Args:
        context_lens: ``[B]`` int32, KV tokens of each sequence, its new token included, >= 1.
        block_tables: ``[B, max_blocks]`` int32, rows dense; entries behind the context are not
            read.
        slot_mapping: ``[B]`` int64.
        cu_seqlens_q: ``[B + 1]`` int32, 0 to B: one new token each.
        block_size: tokens per block.
        max_context_len: bound of the contexts, at least 1.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, or a table is too short for the bound.
    """
    _check_buffers(context_lens, block_tables, slot_mapping, cu_seqlens_q)
    max_tokens = block_tables.shape[1] * block_size
    if not 1 <= max_context_len <= max_tokens:
        raise ValueError(
            f"max_context_len: expected 1 to {max_tokens}, what {block_tables.shape[1]} blocks of "
            f"{block_size} hold, got {max_context_len}"
        )
    num_seqs = len(context_lens)
    is_cpu = context_lens.device.type == "cpu"
    return AttentionBatch(
        cu_seqlens_q=cu_seqlens_q,
        context_lens=context_lens,
        block_tables=block_tables,
        slot_mapping=slot_mapping,
        seqlens_q_host=(1,) * num_seqs,
        context_lens_host=(max_context_len,) * num_seqs,
        block_size=block_size,
        cpu_plan=RefilledPlan(cu_seqlens_q, context_lens, block_tables, block_size)
        if is_cpu
        else None,
    )


def select_sequences(
    batch: AttentionBatch, sequences: Sequence[int]
) -> tuple[AttentionBatch, torch.Tensor]:
    """Return a batch of some sequences of a batch, and the rows of their new tokens.

    Copies to the device without waiting for it.

    Args:
        batch: from `plan_attention`.
        sequences: indices, ascending, at least one.

    Returns:
        The batch, which shares no memory with the other, and ``[T]`` int64 on its device.
    """
    all_new = np.asarray(batch.seqlens_q_host, dtype=np.int32)
    starts = np.cumsum(all_new) - all_new
    index = np.asarray(sequences, dtype=np.int64)
    new = all_new[index]
    cu_seqlens_q = np.zeros(len(index) + 1, dtype=np.int32)
    np.cumsum(new, out=cu_seqlens_q[1:])
    rows = np.concatenate([np.arange(starts[i], starts[i] + all_new[i]) for i in sequences])
    device = batch.context_lens.device
    on_device = to_device((cu_seqlens_q, index, rows.astype(np.int64)), device)
    context_lens = batch.context_lens.index_select(0, on_device[1])
    tables = batch.block_tables.index_select(0, on_device[1])
    cpu_plan = None
    if device.type == "cpu":
        host = context_lens.numpy(), tables.numpy()
        cpu_plan = CpuPlan(cu_seqlens_q, new, *host, batch.block_size)
    return AttentionBatch(
        cu_seqlens_q=on_device[0],
        context_lens=context_lens,
        block_tables=tables,
        slot_mapping=batch.slot_mapping.index_select(0, on_device[2]),
        seqlens_q_host=tuple(new.tolist()),
        context_lens_host=tuple(batch.context_lens_host[i] for i in sequences),
        block_size=batch.block_size,
        cpu_plan=cpu_plan,
    ), on_device[2]


def _where_new(
    cu_seqlens_q: Int32Array, new: Int32Array, context: Int32Array, block_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return of each new token its sequence, its block in the table, and its place in the block."""
    rows = np.arange(len(new))
    if cu_seqlens_q[-1] == len(new):  # decodes alone
        positions = context.astype(np.int64) - 1
    else:
        rows = np.repeat(rows, new)
        positions = np.arange(len(rows)) - np.repeat(cu_seqlens_q[1:] - context, new)
    return rows, positions // block_size, positions % block_size


def _check_buffers(
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    slot_mapping: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
) -> None:
    num_seqs = len(context_lens)
    buffers = {
        "context_lens": (context_lens, torch.int32, (num_seqs,)),
        "block_tables": (block_tables, torch.int32, (num_seqs, None)),
        "slot_mapping": (slot_mapping, torch.int64, (num_seqs,)),
        "cu_seqlens_q": (cu_seqlens_q, torch.int32, (num_seqs + 1,)),
    }
    for name, (tensor, dtype, shape) in buffers.items():
        check_shape(name, tensor, shape)
        if tensor.dtype != dtype or tensor.device != context_lens.device:
            raise ValueError(
                f"{name}: expected {dtype} on {context_lens.device}, "
                f"got {tensor.dtype} on {tensor.device}"
            )
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{name}: expected dense rows, got strides {tensor.stride()}")


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
    lengths = zip(seqlens_q, context_lens, map(len, block_tables), strict=True)
    for row, (new, context, num_blocks) in enumerate(lengths):
        if not 1 <= new <= context:
            raise ValueError(f"sequence {row}: expected 1 <= seqlen_q <= {context}, got {new}")
        if num_blocks * block_size < context:
            raise ValueError(
                f"sequence {row}: expected >= {-(-context // block_size)} blocks for {context} "
                f"tokens, got {num_blocks}"
            )
