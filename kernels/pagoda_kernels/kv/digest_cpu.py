"""The block digest as matrix-vector products of 64-bit integers, which torch and NumPy vectorise.

Knows the definition in `block_digest`. Knows nothing of pools or transfers.
"""

from functools import lru_cache

import numpy as np
import torch

from pagoda_kernels.kv.digest_keys import GAMMA, MASK, TILE_WORDS, column_keys, mix_array, row_keys

TILE_BYTES = 4 * TILE_WORDS
CHUNK_TILES = 1024
"""Tiles worked on at a time: 256 KiB, and as much for their upper words, stay in the L2 cache."""


@lru_cache(maxsize=1)
def _pair_keys() -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of pairs of words read as one: ``w K_even + (w >> 32) (K_odd - 2^32 K_even)``."""
    even, odd = column_keys()[:, ::2], column_keys()[:, 1::2]
    upper = odd - (even << np.uint64(32))
    whole = np.ascontiguousarray(even).view(np.int64)
    return torch.from_numpy(whole), torch.from_numpy(upper.view(np.int64))


def digest_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """As `pagoda_kernels.digest_blocks`, for checked tensors on the CPU."""
    num_blocks, num_bytes = blocks.shape
    num_tiles = -(-num_bytes // TILE_BYTES)
    if num_bytes != num_tiles * TILE_BYTES:
        blocks = torch.nn.functional.pad(blocks, (0, num_tiles * TILE_BYTES - num_bytes))
    blocks = blocks.contiguous()
    if blocks.data_ptr() % 8:  # a view into a received message
        blocks = blocks.clone()
    tiles = blocks.reshape(-1).view(torch.int64).view(num_blocks * num_tiles, TILE_WORDS // 2)
    sums = _tile_sums(tiles).view(np.uint64).reshape(2, num_blocks, num_tiles)
    totals = (sums * row_keys(num_tiles)[:, None]).sum(-1, dtype=np.uint64)
    lanes = mix_array(totals + np.uint64(num_bytes * GAMMA & MASK))
    return torch.from_numpy(np.ascontiguousarray(lanes.T).view(np.uint8))


def _tile_sums(tiles: torch.Tensor) -> np.ndarray:
    """Sums of words times column keys: int64 ``[num, 32]`` -> int64 ``[2, num]``."""
    whole, upper = _pair_keys()
    num_tiles = tiles.shape[0]
    sums = torch.empty((2, num_tiles), dtype=torch.int64)
    shifted = torch.empty((min(CHUNK_TILES, num_tiles), TILE_WORDS // 2), dtype=torch.int64)
    unsigned = shifted.numpy().view(np.uint64)
    for start in range(0, num_tiles, CHUNK_TILES):
        chunk = tiles[start : start + CHUNK_TILES]
        rows = chunk.shape[0]
        np.right_shift(chunk.numpy().view(np.uint64), 32, out=unsigned[:rows])
        for lane in range(2):
            out = sums[lane, start : start + rows]
            torch.mv(chunk, whole[lane], out=out)
            out += torch.mv(shifted[:rows], upper[lane])
    return sums.numpy()
