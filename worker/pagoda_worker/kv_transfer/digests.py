"""Digests of KV blocks: the only thing that decides whether a block arrived as it was sent."""

import numpy as np
import numpy.typing as npt
import xxhash

DIGEST_BYTES = 16

ByteArray = npt.NDArray[np.uint8]


def digest_blocks(blocks: ByteArray) -> list[bytes]:
    """Return XXH3-128 of each row of ``[N, block_bytes]``, contiguous. Not on the event loop."""
    return [xxhash.xxh3_128_digest(block.data) for block in blocks]
