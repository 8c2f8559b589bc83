"""Merges the results of splits into rows of the output, weighted by their log-sum-exp.

Knows partial results. Knows nothing of keys or caches. As Flash-Decoding (Dao et al., 2023).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda.kernels.triton_ops.launch import next_power_of_2, on_device_of

BLOCK_SPLITS = 16
"""Splits loaded at once. Constant, so that the order of summation is the same for any batch."""


@triton.jit
def merge_kernel(
    partial_ptr,
    lse_ptr,
    out_ptr,
    cu_seqlens_q_ptr,
    num_heads,
    num_splits,
    stride_ot,
    stride_oh,
    IS_PER_TOKEN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """``out = sum_i 2^(lse_i - lse) partial_i`` where ``2^lse = sum_i 2^lse_i``.

    Tile [BLOCK_S, BLOCK_D], folded in order; one program per head and sequence, or token if
    IS_PER_TOKEN. Splits without keys have an lse of -inf and a partial that is not read; split 0
    always has keys.
    """
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = seq
    if not IS_PER_TOKEN:
        row = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
        if tl.load(cu_seqlens_q_ptr + seq + 1) - row != 1:
            return
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    first = (seq * num_heads + head) * num_splits
    total_max = tl.load(lse_ptr + first)
    weight_sum = 0.0
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    for start in range(0, num_splits, BLOCK_S):
        offs_s = start + tl.arange(0, BLOCK_S)
        # [BLOCK_S]
        lse = tl.load(lse_ptr + first + offs_s, mask=offs_s < num_splits, other=float("-inf"))
        new_max = tl.maximum(total_max, tl.max(lse, axis=0))
        kept = tl.exp2(total_max - new_max)
        weights = tl.exp2(lse - new_max)
        # [BLOCK_S, BLOCK_D]
        partial = tl.load(
            partial_ptr + ((first + offs_s) * HEAD_DIM)[:, None] + offs_d[None, :],
            mask=(lse > float("-inf"))[:, None] & mask_d[None, :],
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
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
) -> None:
    """Fill the rows of `out` ``[T, H, D]`` that belong to sequences with one new token.

    Args:
        partial: ``[S, H, splits, D]`` fp32, contiguous.
        lse: ``[S, H, splits]`` fp32, contiguous, in units of log2.
        out: dense in the last dim.
        cu_seqlens_q: ``[S + 1]`` int32; None if partial and lse are of tokens, not sequences.
    """
    num_seqs, num_heads, num_splits, head_dim = partial.shape
    with on_device_of(out):
        merge_kernel[(num_seqs, num_heads)](
            partial,
            lse,
            out,
            lse if cu_seqlens_q is None else cu_seqlens_q,
            num_heads,
            num_splits,
            *out.stride()[:2],
            IS_PER_TOKEN=cu_seqlens_q is None,
            HEAD_DIM=head_dim,
            BLOCK_S=BLOCK_SPLITS,
            BLOCK_D=next_power_of_2(head_dim),
        )
