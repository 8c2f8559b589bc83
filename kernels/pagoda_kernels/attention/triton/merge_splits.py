"""Merges the results of splits into rows of the output, weighted by their log-sum-exp.

Knows partial results. Knows nothing of keys or caches. As Flash-Decoding (Dao et al., 2023).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

BLOCK_SPLITS = 16
"""Splits loaded at once. Constant, so that the order of summation is the same for any batch."""


@triton.jit(do_not_specialize=["span_ptr", "cu_seqlens_q_ptr"])
def merge_kernel(
    partial_ptr,
    lse_ptr,
    span_ptr,
    out_ptr,
    cu_seqlens_q_ptr,
    num_heads,
    stride_ot,
    stride_oh,
    IS_PER_TOKEN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``out = sum_i 2^(lse_i - lse) partial_i`` where ``2^lse = sum_i 2^lse_i``.

    Tile [BLOCK_S, BLOCK_D], folded in order; one program per head and sequence, or token if
    IS_PER_TOKEN. What was attended in one split is in `out` already.
    """
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = seq
    if not IS_PER_TOKEN:
        row = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
        if tl.load(cu_seqlens_q_ptr + seq + 1) - row != 1:
            return
    num_splits = tl.load(span_ptr + 2 * seq + 1)
    if num_splits == 1:
        return
    first = tl.load(span_ptr + 2 * seq).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    total_max = tl.load(lse_ptr + first * num_heads + head)
    weight_sum = 0.0
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    for start in range(0, num_splits, BLOCK_S):
        offs_s = start + tl.arange(0, BLOCK_S)
        mask_s = offs_s < num_splits
        at = (first + offs_s) * num_heads + head
        # [BLOCK_S]
        lse = tl.load(lse_ptr + at, mask=mask_s, other=float("-inf"))
        new_max = tl.maximum(total_max, tl.max(lse, axis=0))
        kept = tl.exp2(total_max - new_max)
        weights = tl.exp2(lse - new_max)
        # [BLOCK_S, BLOCK_D]
        partial = tl.load(
            partial_ptr + (at * HEAD_DIM)[:, None] + offs_d[None, :],
            mask=mask_s[:, None] & mask_d[None, :],
            other=0.0,
        )
        acc = acc * kept + tl.sum(partial * weights[:, None], axis=0)
        weight_sum = weight_sum * kept + tl.sum(weights, axis=0)
        total_max = new_max
    tl.store(
        out_ptr + row * stride_ot + head * stride_oh + offs_d,
        (acc / weight_sum).to(out_ptr.dtype.element_ty),
        mask=mask_d,
    )


def merge_splits(
    partial: torch.Tensor,
    lse: torch.Tensor,
    spans: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
) -> None:
    """Fill the rows of `out` ``[T, H, D]`` whose sequences were attended in several splits.

    Args:
        partial: ``[slots, H, D]`` fp32, contiguous.
        lse: ``[slots, H]`` fp32, contiguous, in units of log2.
        spans: ``[S, 2]`` int32, first slot and number of splits; those of sequences with several
            new tokens are not read.
        out: dense in the last dim.
        cu_seqlens_q: ``[S + 1]`` int32; None if spans are of tokens, not sequences.
    """
    num_heads, head_dim = partial.shape[1:]
    with on_device_of(out):
        merge_kernel[(len(spans), num_heads)](
            partial,
            lse,
            spans,
            out,
            spans if cu_seqlens_q is None else cu_seqlens_q,
            num_heads,
            *out.stride()[:2],
            IS_PER_TOKEN=cu_seqlens_q is None,
            HEAD_DIM=head_dim,
            BLOCK_S=BLOCK_SPLITS,
            BLOCK_D=next_power_of_2(head_dim),
        )
