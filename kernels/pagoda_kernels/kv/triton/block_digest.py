"""Digest of whole blocks, alone and as steps for kernels that copy them.

Reference: `reference.digest_blocks`; the formula is in `pagoda_kernels.kv.block_digest`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl

from pagoda_kernels.kv import digest_keys
from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

TILE_WORDS = digest_keys.TILE_WORDS
TILE_ROWS = 32
"""Rows a program reads at a time: 8 KiB, sixteen words and twice as many sums per thread of 128."""

PROGRAM_ROWS = 128
"""Rows of one program: 32 KiB, so that its one reduction over threads is little beside them."""

GAMMA = tl.constexpr(digest_keys.GAMMA)
MIX_FIRST = tl.constexpr(digest_keys.MIX_FIRST)
MIX_SECOND = tl.constexpr(digest_keys.MIX_SECOND)


@triton.jit
def add_words(sums, words, row_key):
    """``sums + words * row_key`` modulo 2^64: [R, W] int64, [R, W] int32, [R] int64."""
    wide = words.to(tl.uint32, bitcast=True).to(tl.uint64).to(tl.int64, bitcast=True)
    return sums + wide * row_key[:, None]


@triton.jit
def store_sum(partial_ptr, sums, column_key):
    """Add up ``sums * column_key``: [R, W] and [W] int64 -> one int64 in memory.

    Rows first: what a thread holds of one column needs no other thread and one product.
    """
    tl.store(partial_ptr, tl.sum(tl.sum(sums, axis=0) * column_key, axis=0))


@triton.jit
def digest_kernel(
    word_ptr,
    row_key_ptr,
    column_key_ptr,
    partial_ptr,
    num_words,
    num_rows,
    stride_n,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    PROGRAM_ROWS: tl.constexpr,
):
    """``partial_c = sum_p w_p * row_c(p // 64) * column_c(p % 64)`` over a run of rows of a block.

    Tile [ROWS, WORDS] of int32, sums of both lanes in int64 and elementwise until the end. Program
    (n, i) takes rows ``[i, i + 1) * PROGRAM_ROWS`` of block n.
    """
    block = tl.program_id(0).to(tl.int64)
    offs_w = tl.arange(0, WORDS)
    first = tl.zeros([ROWS, WORDS], tl.int64)
    second = tl.zeros([ROWS, WORDS], tl.int64)
    for start in range(0, PROGRAM_ROWS, ROWS):
        offs_r = tl.program_id(1) * PROGRAM_ROWS + start + tl.arange(0, ROWS)
        offs = offs_r[:, None] * WORDS + offs_w[None, :]
        # [ROWS, WORDS]
        words = tl.load(word_ptr + block * stride_n + offs, mask=offs < num_words, other=0)
        # [ROWS]
        mask_r = offs_r < num_rows
        first = add_words(first, words, tl.load(row_key_ptr + offs_r, mask=mask_r, other=0))
        second = add_words(
            second, words, tl.load(row_key_ptr + num_rows + offs_r, mask=mask_r, other=0)
        )
    out = partial_ptr + 2 * (block * tl.num_programs(1) + tl.program_id(1))
    store_sum(out, first, tl.load(column_key_ptr + offs_w))
    store_sum(out + 1, second, tl.load(column_key_ptr + WORDS + offs_w))


@triton.jit
def finish_digest_kernel(partial_ptr, digest_ptr, num_partials, num_bytes, BLOCK_P: tl.constexpr):
    """``digest = mix(sum of partials + num_bytes * GAMMA)``; one program per block and lane."""
    block = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1)
    offs_p = tl.arange(0, BLOCK_P)
    at = partial_ptr + 2 * (block * num_partials + offs_p) + lane
    # [BLOCK_P]
    partials = tl.load(at, mask=offs_p < num_partials, other=0)
    size = (tl.zeros([1], tl.int64) + num_bytes).to(tl.uint64, bitcast=True)
    value = tl.sum(partials, axis=0).to(tl.uint64, bitcast=True) + size * GAMMA
    value = (value ^ (value >> 30)) * MIX_FIRST
    value = (value ^ (value >> 27)) * MIX_SECOND
    value = value ^ (value >> 31)
    tl.store(digest_ptr + 2 * block + lane + tl.arange(0, 1), value.to(tl.int64, bitcast=True))


@lru_cache(maxsize=16)
def keys_on(device: torch.device, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Int64 row keys ``[2, num_rows]`` and column keys ``[2, 64]``, copied once per device.

    The copy cannot be captured in a CUDA graph: digest one block of this size before.
    """
    rows, columns = digest_keys.row_keys(num_rows), digest_keys.column_keys()
    on_host = (torch.from_numpy(keys.view(np.int64)) for keys in (rows, columns))
    row_keys, column_keys = (keys.to(device, copy=True) for keys in on_host)
    return row_keys, column_keys


def finish_digests(partials: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """Int64 partial sums ``[N, P, 2]`` of blocks of `num_bytes` -> digests ``[N, 16]`` uint8."""
    num_blocks, num_partials, _ = partials.shape
    digests = torch.empty((num_blocks, 2), dtype=torch.int64, device=partials.device)
    if num_blocks:
        with on_device_of(partials):
            finish_digest_kernel[(num_blocks, 2)](
                partials, digests, num_partials, num_bytes, BLOCK_P=next_power_of_2(num_partials)
            )
    return digests.view(torch.uint8).view(num_blocks, 16)


def digest_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """Launch over blocks and runs of rows; arguments as `pagoda_kernels.digest_blocks`."""
    num_blocks, num_bytes = blocks.shape
    if num_bytes % 4:
        blocks = torch.nn.functional.pad(blocks, (0, -num_bytes % 4))
    if blocks.data_ptr() % 4 or blocks.stride(0) % 4:
        blocks = blocks.clone(memory_format=torch.contiguous_format)
    num_words = blocks.shape[1] // 4
    num_rows = triton.cdiv(num_words, TILE_WORDS)
    num_partials = max(1, triton.cdiv(num_rows, PROGRAM_ROWS))
    partials = torch.empty((num_blocks, num_partials, 2), dtype=torch.int64, device=blocks.device)
    if blocks.numel() == 0:
        return finish_digests(partials.zero_(), num_bytes)
    with on_device_of(blocks):
        digest_kernel[(num_blocks, num_partials)](
            blocks.view(torch.int32),
            *keys_on(blocks.device, num_rows),
            partials,
            num_words,
            num_rows,
            blocks.stride(0) // 4,
            ROWS=TILE_ROWS,
            WORDS=TILE_WORDS,
            PROGRAM_ROWS=PROGRAM_ROWS,
        )
    return finish_digests(partials, num_bytes)
