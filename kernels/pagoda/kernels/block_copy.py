"""Whole KV blocks of all layers out of the pool and back, for KV transfer.

Knows the pool layout ``[2, num_layers, num_blocks, block_size, HK, D]``. Knows nothing of hashes or
peers.
"""

import torch

from pagoda.kernels.checks import check_index, check_same, check_shape


def gather_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """Copy blocks so that each is contiguous: what one block needs on the wire is one memory range.

    Args:
        kv_cache: ``[2, num_layers, num_blocks, block_size, HK, D]``.
        block_ids: ``[N]`` int32 or int64 on the device of the pool.

    Returns:
        New contiguous ``[N, 2, num_layers, block_size, HK, D]``.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(kv_cache, block_ids)
    two, num_layers, _, *block = kv_cache.shape
    blocks = kv_cache.new_empty((len(block_ids), two, num_layers, *block))
    torch.index_select(kv_cache, 2, block_ids, out=blocks.movedim(0, 2))
    return blocks


def scatter_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
    """Copy `blocks` into the pool in place; inverse of `gather_blocks`.

    Args:
        kv_cache: ``[2, num_layers, num_blocks, block_size, HK, D]``.
        block_ids: ``[N]`` int32 or int64, each at most once.
        blocks: ``[N, 2, num_layers, block_size, HK, D]``, dtype and device of the pool.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(kv_cache, block_ids)
    two, num_layers, _, *block = kv_cache.shape
    check_shape("blocks", blocks, (len(block_ids), two, num_layers, *block))
    check_same("blocks", blocks, "kv_cache", kv_cache)
    if kv_cache.is_cuda:
        kv_cache.index_copy_(2, block_ids.long(), blocks.movedim(0, 2))
        return
    for row, block_id in enumerate(block_ids.tolist()):
        # Five times faster than index_copy_, which copies such short runs one by one.
        kv_cache[:, :, block_id].copy_(blocks[row])


def _check(kv_cache: torch.Tensor, block_ids: torch.Tensor) -> None:
    check_shape("kv_cache", kv_cache, (2, None, None, None, None, None))
    check_shape("block_ids", block_ids, (None,))
    check_index("block_ids", block_ids, kv_cache.device)
