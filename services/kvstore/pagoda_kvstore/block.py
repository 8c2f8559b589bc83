"""One stored block: its key, its place in the prefix tree, its bytes and their digest.

Knows nothing of what the bytes mean.
"""

from dataclasses import dataclass
from typing import NamedTuple

import xxhash

HASH_BYTES = 16
DIGEST_BYTES = 16


class BlockKey(NamedTuple):
    """What a block is stored under: equal keys mean equal bytes."""

    kv_identity: bytes
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it was put. `parent_hash` is empty for the first block of a chain."""

    key: BlockKey
    parent_hash: bytes
    digest: bytes
    payload: bytes

    @property
    def parent_key(self) -> BlockKey | None:
        """Key of the block before it in the chain; None if there is none."""
        if not self.parent_hash or self.parent_hash == self.key.block_hash:
            return None
        return BlockKey(self.key.kv_identity, self.parent_hash)

    def is_intact(self) -> bool:
        """Return whether the payload still has its digest."""
        return payload_digest(self.payload) == self.digest


def payload_digest(payload: bytes) -> bytes:
    """Return XXH3-128 of a payload, 16 bytes."""
    return xxhash.xxh3_128_digest(payload)
