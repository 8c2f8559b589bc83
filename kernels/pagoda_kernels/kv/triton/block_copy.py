"""Whole blocks of all layers between a pool and a contiguous buffer or another pool, as raw bytes.

Bound by memory: every byte is read once and written once, in loads and stores of 16 bytes. The
digest of a copied block costs about six integer instructions a word on top, from registers.
Reference: `reference.gather_blocks`, `reference.scatter_blocks`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.kv.block_digest import as_bytes
from pagoda_kernels.kv.triton.block_digest import (
    PROGRAM_ROWS,
    TILE_ROWS,
    TILE_WORDS,
    add_words,
    digest_blocks,
    finish_digests,
    keys_on,
    store_sum,
)
from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

COPY_BYTES = 8192
"""Bytes one program copies: four loads of 16 bytes in flight per thread of 128."""

WORD_TYPES = (torch.int64, torch.int32, torch.int16, torch.uint8)


@triton.jit
def run_offset(block_ids_ptr, row, run, num_layers, stride_two, stride_layer, stride_block):
    """Where in the pool run ``(k or v, layer)`` of the block of `row` starts."""
    block = tl.load(block_ids_ptr + row).to(tl.int64)
    return offset_of(block, run, num_layers, stride_two, stride_layer, stride_block)


@triton.jit
def offset_of(block, run, num_layers, stride_two, stride_layer, stride_block):
    """Where in a pool run ``(k or v, layer)`` of a block starts."""
    layer = (run % num_layers).to(tl.int64)
    return (run // num_layers) * stride_two + layer * stride_layer + block * stride_block


@triton.jit(do_not_specialize=["block_ids_ptr", "skipped_ptr"])
def copy_blocks_kernel(
    pool_ptr,
    buffer_ptr,
    block_ids_ptr,
    skipped_ptr,
    num_layers,
    run_words,
    stride_two,
    stride_layer,
    stride_block,
    stride_row,
    TO_POOL: tl.constexpr,
    HAS_SKIPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``buffer[n, r, :] = pool[r // L, r % L, block_ids[n], :]``, or back.

    Tile [BLOCK] words of 1, 2, 4 or 8 bytes. Program (n, i) copies tile ``i % tiles`` of run
    ``i // tiles`` of row n, where a run is what one layer's K or V of a block is. Rows that are
    skipped are neither read nor written.
    """
    row = tl.program_id(0).to(tl.int64)
    if HAS_SKIPPED:  # noqa: SIM102 - a constexpr and a tensor make no conjunction
        if tl.load(skipped_ptr + row) != 0:
            return
    tiles = tl.cdiv(run_words, BLOCK)
    run = tl.program_id(1) // tiles
    offs = (tl.program_id(1) % tiles) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < run_words
    in_pool = pool_ptr + run_offset(
        block_ids_ptr, row, run, num_layers, stride_two, stride_layer, stride_block
    )
    in_buffer = buffer_ptr + row * stride_row + run.to(tl.int64) * run_words
    # [BLOCK]
    if TO_POOL:
        tl.store(in_pool + offs, tl.load(in_buffer + offs, mask=mask, other=0), mask=mask)
    else:
        tl.store(in_buffer + offs, tl.load(in_pool + offs, mask=mask, other=0), mask=mask)


@triton.jit(do_not_specialize=["block_ids_ptr", "target_ids_ptr"])
def copy_digest_kernel(
    pool_ptr,
    target_ptr,
    block_ids_ptr,
    target_ids_ptr,
    row_key_ptr,
    column_key_ptr,
    partial_ptr,
    num_layers,
    run_rows,
    stride_two,
    stride_layer,
    stride_block,
    target_stride_two,
    target_stride_layer,
    target_stride_block,
    num_rows,
    HAS_TARGET_IDS: tl.constexpr,
    WRITES: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    PROGRAM_ROWS: tl.constexpr,
):
    """`copy_blocks_kernel` out of the pool and `digest_kernel` of what it copies.

    Tile [ROWS, WORDS] of int32. Program (n, i) takes PROGRAM_ROWS rows of one run of block n, which
    is a whole number of rows of the digest. Block n goes to block ``target_ids[n]`` of the target,
    or to block n, or nowhere.
    """
    row = tl.program_id(0).to(tl.int64)
    parts = tl.cdiv(run_rows, PROGRAM_ROWS)
    run = tl.program_id(1) // parts
    part = (tl.program_id(1) % parts) * PROGRAM_ROWS
    in_pool = pool_ptr + run_offset(
        block_ids_ptr, row, run, num_layers, stride_two, stride_layer, stride_block
    )
    block = row
    if HAS_TARGET_IDS:
        block = tl.load(target_ids_ptr + row).to(tl.int64)
    in_target = target_ptr + offset_of(
        block, run, num_layers, target_stride_two, target_stride_layer, target_stride_block
    )
    key_ptr = row_key_ptr + run * run_rows
    offs_w = tl.arange(0, WORDS)
    first = tl.zeros([ROWS, WORDS], tl.int64)
    second = tl.zeros([ROWS, WORDS], tl.int64)
    for start in range(0, PROGRAM_ROWS, ROWS):
        offs_r = part + start + tl.arange(0, ROWS)
        mask_r = offs_r < run_rows
        offs = offs_r[:, None] * WORDS + offs_w[None, :]
        # [ROWS, WORDS]
        words = tl.load(in_pool + offs, mask=mask_r[:, None], other=0)
        if WRITES:
            tl.store(in_target + offs, words, mask=mask_r[:, None])
        # [ROWS]
        first = add_words(first, words, tl.load(key_ptr + offs_r, mask=mask_r, other=0))
        second = add_words(
            second, words, tl.load(key_ptr + num_rows + offs_r, mask=mask_r, other=0)
        )
    out = partial_ptr + 2 * (row * tl.num_programs(1) + tl.program_id(1))
    store_sum(out, first, tl.load(column_key_ptr + offs_w))
    store_sum(out + 1, second, tl.load(column_key_ptr + WORDS + offs_w))


def gather_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
    """Fill `blocks`; arguments as `pagoda_kernels.gather_blocks`, the runs of the pool dense."""
    _copy(kv_cache, block_ids, blocks, None, to_pool=False)


def scatter_blocks(
    kv_cache: torch.Tensor,
    block_ids: torch.Tensor,
    blocks: torch.Tensor,
    skipped: torch.Tensor | None = None,
) -> None:
    """Copy into the pool all rows n but those with ``skipped[n]`` (bool ``[N]``)."""
    _copy(kv_cache, block_ids, blocks.contiguous(), skipped, to_pool=True)


def gather_blocks_digest(
    kv_cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor
) -> torch.Tensor:
    """Fill `blocks` and return their digests, in one pass if runs are whole rows of the digest."""
    target = blocks.movedim(0, 2)
    if not len(block_ids) or not _can_digest(kv_cache, target):
        gather_blocks(kv_cache, block_ids, blocks)
        return digest_blocks(as_bytes(blocks))
    return _copy_digest(kv_cache, block_ids, target, None)


def digest_pool(kv_cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """Digest blocks where they lie; as `pagoda_kernels.digest_pool`."""
    if not len(block_ids) or not _can_digest(kv_cache, kv_cache):
        blocks = kv_cache.new_empty((len(block_ids), *kv_cache.shape[:2], *kv_cache.shape[3:]))
        return gather_blocks_digest(kv_cache, block_ids, blocks)
    return _copy_digest(kv_cache, block_ids, None, None)


def copy_blocks(
    source: torch.Tensor, source_ids: torch.Tensor, target: torch.Tensor, target_ids: torch.Tensor
) -> torch.Tensor:
    """Copy from pool to pool and return the digests; as `pagoda_kernels.copy_blocks`."""
    if not len(source_ids) or not _can_digest(source, target):
        blocks = source.new_empty((len(source_ids), *source.shape[:2], *source.shape[3:]))
        digests = gather_blocks_digest(source, source_ids, blocks)
        scatter_blocks(target, target_ids, blocks)
        return digests
    return _copy_digest(source, source_ids, target, target_ids)


def _can_digest(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether runs are whole rows of the digest, aligned in both, and there is anything at all."""
    run_bytes = source.shape[3:].numel() * source.element_size()
    is_whole = run_bytes % (4 * TILE_WORDS) == 0 and _word_type(source, target).itemsize >= 4
    return is_whole and source.shape[1] > 0 and run_bytes > 0


def _copy_digest(
    source: torch.Tensor,
    source_ids: torch.Tensor,
    target: torch.Tensor | None,
    target_ids: torch.Tensor | None,
) -> torch.Tensor:
    num_blocks, (planes, num_layers) = len(source_ids), source.shape[:2]
    run_bytes = source.shape[3:].numel() * source.element_size()
    run_rows = run_bytes // (4 * TILE_WORDS)
    num_rows = planes * num_layers * run_rows
    parts = planes * num_layers * triton.cdiv(run_rows, PROGRAM_ROWS)
    partials = torch.empty((num_blocks, parts, 2), dtype=torch.int64, device=source.device)
    pool = _runs(source).view(torch.int32)
    into = pool if target is None else _runs(target).view(torch.int32)
    with on_device_of(source):
        copy_digest_kernel[(num_blocks, parts)](
            pool,
            into,
            source_ids.contiguous(),
            source_ids if target_ids is None else target_ids.contiguous(),
            *keys_on(source.device, num_rows),
            partials,
            num_layers,
            run_rows,
            *pool.stride()[:3],
            *into.stride()[:3],
            num_rows,
            HAS_TARGET_IDS=target_ids is not None,
            WRITES=target is not None,
            ROWS=TILE_ROWS,
            WORDS=TILE_WORDS,
            PROGRAM_ROWS=PROGRAM_ROWS,
        )
    return finish_digests(partials, planes * num_layers * run_bytes)


def _copy(
    kv_cache: torch.Tensor,
    block_ids: torch.Tensor,
    blocks: torch.Tensor,
    skipped: torch.Tensor | None,
    *,
    to_pool: bool,
) -> None:
    if blocks.numel() == 0:
        return
    num_blocks, planes, num_layers = blocks.shape[:3]
    word_type = _word_type(kv_cache, blocks)
    pool = _runs(kv_cache).view(word_type)
    buffer = as_bytes(blocks).view(word_type)
    run_words = pool.shape[3]
    block = min(COPY_BYTES // word_type.itemsize, next_power_of_2(run_words))
    with on_device_of(blocks):
        copy_blocks_kernel[(num_blocks, planes * num_layers * triton.cdiv(run_words, block))](
            pool,
            buffer,
            block_ids.contiguous(),
            block_ids if skipped is None else skipped.view(torch.uint8),
            num_layers,
            run_words,
            *pool.stride()[:3],
            buffer.stride(0),
            TO_POOL=to_pool,
            HAS_SKIPPED=skipped is not None,
            BLOCK=block,
        )


def _runs(kv_cache: torch.Tensor) -> torch.Tensor:
    """View the pool as ``[planes, num_layers, num_blocks, run]`` of its dtype."""
    shape, strides = kv_cache.shape, kv_cache.stride()
    return kv_cache.as_strided((*shape[:3], shape[3:].numel()), (*strides[:3], 1))


def _word_type(kv_cache: torch.Tensor, other: torch.Tensor) -> torch.dtype:
    """Widest integer that divides runs, distances between them, and where both tensors start.

    `other` is a pool too, or contiguous blocks, whose distances are multiples of a run.
    """
    size = kv_cache.element_size()
    bits = kv_cache.data_ptr() | other.data_ptr() | kv_cache.shape[3:].numel() * size
    for stride in (*kv_cache.stride()[:3], *other.stride()[:3]):
        bits |= stride * size
    return next(dtype for dtype in WORD_TYPES if bits % dtype.itemsize == 0)
