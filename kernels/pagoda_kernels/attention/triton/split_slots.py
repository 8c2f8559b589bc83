"""Which split of which sequence a program attends, found on the device from the lengths there.

Knows lengths. Knows nothing of what a split computes. See `splits` for what the host decides.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

BLOCK_S: tl.constexpr = tl.constexpr(256)
"""Sequences looked at at once."""


@triton.jit
def tokens_per_split(tokens, most_splits, min_tokens, BLOCK_N: tl.constexpr):
    """Tokens of a split: at most `most_splits` of one size, whole tiles.

    As many as there are with `min_tokens` each at least, but equal: the longest is waited for.
    """
    least = tl.maximum(tl.cdiv(tokens, most_splits), min_tokens)
    num_splits = tl.maximum(tl.cdiv(tokens, least), 1)
    return tl.cdiv(tl.cdiv(tokens, num_splits), BLOCK_N) * BLOCK_N


@triton.jit
def num_splits_of(tokens, split_tokens):
    """Splits of a sequence: one even if it has no tokens, to write its rows."""
    return tl.maximum(tl.cdiv(tokens, tl.maximum(split_tokens, 1)), 1)


@triton.jit
def _decoded_tokens(cu_seqlens_q_ptr, context_lens_ptr, start, num_seqs, WINDOW: tl.constexpr):
    """(tokens to attend in each sequence, whether it has one new token), [BLOCK_S] each."""
    offs_s = start + tl.arange(0, BLOCK_S)
    mask = offs_s < num_seqs
    first = tl.load(cu_seqlens_q_ptr + offs_s, mask=mask, other=0)
    after = tl.load(cu_seqlens_q_ptr + offs_s + 1, mask=mask, other=0)
    tokens = tl.load(context_lens_ptr + offs_s, mask=mask, other=0)
    if WINDOW > 0:
        tokens = tl.minimum(tokens, WINDOW)
    is_decode = after - first == 1
    return tl.where(is_decode, tokens, 0), is_decode


@triton.jit
def place_of(
    slot,
    cu_seqlens_q_ptr,
    context_lens_ptr,
    num_seqs,
    per_seq,
    share,
    most_splits,
    min_tokens,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """(sequence or -1, split, fewest tokens of a split) of a slot.

    Slots are shared out in the order of the sequences: with splits of at least ``total / share``
    tokens there are at most ``share`` more of them than sequences.
    """
    if share == 0:
        seq = slot // per_seq
        split = slot % per_seq
        least = min_tokens
    else:
        # 64 bits: thousands of long sequences exceed 32.
        total = tl.zeros([BLOCK_S], dtype=tl.int64)
        for start in range(0, num_seqs, BLOCK_S):
            tokens, _ = _decoded_tokens(cu_seqlens_q_ptr, context_lens_ptr, start, num_seqs, WINDOW)
            total += tokens
        least = tl.maximum(min_tokens, tl.cdiv(tl.sum(total, axis=0), share).to(tl.int32))
        seq = -1
        split = 0
        before = 0
        for start in range(0, num_seqs, BLOCK_S):
            # [BLOCK_S]
            tokens, is_decode = _decoded_tokens(
                cu_seqlens_q_ptr, context_lens_ptr, start, num_seqs, WINDOW
            )
            size = tokens_per_split(tokens, most_splits, least, BLOCK_N)
            count = tl.where(is_decode, num_splits_of(tokens, size), 0)
            end = before + tl.cumsum(count, axis=0)
            is_here = (end - count <= slot) & (slot < end)
            seq += tl.sum(tl.where(is_here, start + tl.arange(0, BLOCK_S) + 1, 0), axis=0)
            split += tl.sum(tl.where(is_here, slot - (end - count), 0), axis=0)
            before += tl.sum(count, axis=0)
    return seq, split, least
