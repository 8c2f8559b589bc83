"""Whole KV blocks out of a pool, back, and from pool to pool, for KV transfer.

Knows the pool layout ``[planes, num_layers, num_blocks, block_size, HK, D]``, two planes for K and
V or one for latents, and the digest of a block.
Some layers of a pool are a pool too. Knows nothing of hashes that name blocks, or of peers.

On CUDA blocks are digested while they are copied, and `digest_pool` copies none, if what one layer
holds of a block is dense and a multiple of 256 bytes. Else the digest is taken of a copy.
"""

from typing import Literal, overload

import torch

from pagoda_kernels.checks import check_index, check_same, check_shape
from pagoda_kernels.kv.block_digest import DIGEST_BYTES, as_bytes, check_digests, digest_blocks


@overload
def gather_blocks(
    kv_cache: torch.Tensor, block_ids: torch.Tensor, *, with_digest: Literal[False] = False
) -> torch.Tensor: ...
@overload
def gather_blocks(
    kv_cache: torch.Tensor, block_ids: torch.Tensor, *, with_digest: Literal[True]
) -> tuple[torch.Tensor, torch.Tensor]: ...


def gather_blocks(
    kv_cache: torch.Tensor, block_ids: torch.Tensor, *, with_digest: bool = False
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Copy blocks so that each is contiguous: what one block needs on the wire is one memory range.

    Args:
        kv_cache: ``[planes, num_layers, num_blocks, block_size, HK, D]``, any dtype.
        block_ids: ``[N]`` int32 or int64 on the device of the pool.
        with_digest: also digest each block.

    Returns:
        New contiguous ``[N, planes, num_layers, block_size, HK, D]``; with digests the pair
        (blocks, uint8 ``[N, 16]`` as `digest_blocks` of their bytes).

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(kv_cache, block_ids)
    planes, num_layers, _, *block = kv_cache.shape
    blocks = kv_cache.new_empty((len(block_ids), planes, num_layers, *block))
    if kv_cache.is_cuda and _has_dense_runs(kv_cache):
        from pagoda_kernels.kv.triton import block_copy as triton_block_copy

        if with_digest:
            return blocks, triton_block_copy.gather_blocks_digest(kv_cache, block_ids, blocks)
        triton_block_copy.gather_blocks(kv_cache, block_ids, blocks)
        return blocks
    torch.index_select(kv_cache, 2, block_ids, out=blocks.movedim(0, 2))
    return (blocks, digest_blocks(as_bytes(blocks))) if with_digest else blocks


@overload
def scatter_blocks(
    kv_cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor, *, expected: None = None
) -> None: ...
@overload
def scatter_blocks(
    kv_cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor, *, expected: torch.Tensor
) -> torch.Tensor: ...


def scatter_blocks(
    kv_cache: torch.Tensor,
    block_ids: torch.Tensor,
    blocks: torch.Tensor,
    *,
    expected: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Copy `blocks` into the pool in place; inverse of `gather_blocks`.

    With `expected`, every block is digested before any is copied, and a block whose digest is
    another does not touch the pool: its place keeps the bytes it had, whoever reads it. That is one
    more read of `blocks`. The host waits for nothing on CUDA if tokens of a block are dense, so the
    owner of the places has to read the mask before it lets anybody attend to them.

    Args:
        kv_cache: ``[planes, num_layers, num_blocks, block_size, HK, D]``, any dtype.
        block_ids: ``[N]`` int32 or int64, each at most once.
        blocks: ``[N, planes, num_layers, block_size, HK, D]``, dtype and device of the pool.
            Nobody may write to it meanwhile.
        expected: ``[N, 16]`` uint8 on the same device, as `gather_blocks` returned them.

    Returns:
        With `expected` a bool ``[N]`` on the device, True where a block was not copied; else None.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(kv_cache, block_ids)
    planes, num_layers, _, *block = kv_cache.shape
    check_shape("blocks", blocks, (len(block_ids), planes, num_layers, *block))
    check_same("blocks", blocks, "kv_cache", kv_cache)
    mismatches = None
    if expected is not None:
        check_digests("expected", expected, len(block_ids), kv_cache.device)
        blocks = blocks.contiguous()
        mismatches = (digest_blocks(as_bytes(blocks)) != expected).any(1)
    if kv_cache.is_cuda and _has_dense_runs(kv_cache):
        from pagoda_kernels.kv.triton.block_copy import scatter_blocks as scatter_blocks_triton

        scatter_blocks_triton(kv_cache, block_ids, blocks, mismatches)
        return mismatches
    if mismatches is not None:
        good = ~mismatches
        block_ids, blocks = block_ids[good], blocks[good]
    if kv_cache.is_cuda:
        kv_cache.index_copy_(2, block_ids.long(), blocks.movedim(0, 2))
        return mismatches
    for row, block_id in enumerate(block_ids.tolist()):
        # Five times faster than index_copy_, which copies such short runs one by one.
        kv_cache[:, :, block_id].copy_(blocks[row])
    return mismatches


def digest_pool(kv_cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """Digest blocks where they lie.

    Args:
        kv_cache: ``[planes, num_layers, num_blocks, block_size, HK, D]``, any dtype.
        block_ids: ``[N]`` int32 or int64 on the device of the pool.

    Returns:
        uint8 ``[N, 16]`` as `digest_blocks` of the blocks' bytes. The host waits for nothing.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(kv_cache, block_ids)
    if kv_cache.is_cuda and _has_dense_runs(kv_cache):
        from pagoda_kernels.kv.triton.block_copy import digest_pool as digest_pool_triton

        return digest_pool_triton(kv_cache, block_ids)
    digests = torch.empty((len(block_ids), DIGEST_BYTES), dtype=torch.uint8, device=kv_cache.device)
    for row in range(len(block_ids)):  # one copy at a time: all together may be half a pool
        digests[row] = gather_blocks(kv_cache, block_ids[row : row + 1], with_digest=True)[1][0]
    return digests


def copy_blocks(
    source: torch.Tensor, source_ids: torch.Tensor, target: torch.Tensor, target_ids: torch.Tensor
) -> torch.Tensor:
    """Copy blocks from one pool to another and digest what was copied.

    What was copied is there before anybody has compared its digest: the owner of the places must do
    so before it lets anybody attend to them.

    Args:
        source: ``[planes, num_layers, num_blocks, block_size, HK, D]``, any dtype.
        source_ids: ``[N]`` int32 or int64 on the device of both pools.
        target: another pool of the same shape but for num_blocks, same dtype and device.
        target_ids: as `source_ids`, each at most once.

    Returns:
        uint8 ``[N, 16]`` as `digest_blocks` of the blocks' bytes. The host waits for nothing.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(source, source_ids)
    _check(target, target_ids)
    planes, num_layers, _, *block = source.shape
    check_shape("target", target, (planes, num_layers, None, *block))
    check_same("target", target, "source", source)
    check_shape("target_ids", target_ids, source_ids.shape)
    if source.is_cuda and _has_dense_runs(source) and _has_dense_runs(target):
        from pagoda_kernels.kv.triton.block_copy import copy_blocks as copy_blocks_triton

        return copy_blocks_triton(source, source_ids, target, target_ids)
    blocks, digests = gather_blocks(source, source_ids, with_digest=True)
    scatter_blocks(target, target_ids, blocks)
    return digests


def _has_dense_runs(kv_cache: torch.Tensor) -> bool:
    """Whether what one layer holds of a block is one memory range."""
    _, _, _, _, num_kv_heads, head_dim = kv_cache.shape
    return kv_cache.stride()[3:] == (num_kv_heads * head_dim, head_dim, 1)


def _check(kv_cache: torch.Tensor, block_ids: torch.Tensor) -> None:
    check_shape("kv_cache", kv_cache, (None, None, None, None, None, None))
    check_shape("block_ids", block_ids, (None,))
    check_index("block_ids", block_ids, kv_cache.device)
