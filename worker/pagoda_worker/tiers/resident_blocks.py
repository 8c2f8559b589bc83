"""Which block hash lies in which physical block right now, as the step thread sees it.

Others read blocks while the engine goes on; asking `holds` after reading tells whether what was
read is what was meant: an eviction is noted before the block is overwritten. Also remembers each
block's parent in its chain.
"""

import threading
from collections.abc import Iterable, Sequence

from pagoda_engine import StepResult


class ResidentBlocks:
    """Written by the step thread, read by any."""

    def __init__(self) -> None:
        self._hash_of: dict[int, bytes] = {}

    def on_evict(self, block_hash: bytes, block_id: int) -> None:
        """The engine is about to overwrite a block (step thread)."""
        self._hash_of.pop(block_id, None)

    def after_step(self, result: StepResult) -> None:
        """Note what became reusable (step thread, before the next step), if it is whole."""
        for block_hash, block_id in result.stored:
            if block_id not in result.partial:
                self._hash_of[block_id] = block_hash

    def holds(self, block_hash: bytes, block_id: int) -> bool:
        """Tell whether the block has had these bytes at least since its hash was reported."""
        return self._hash_of.get(block_id) == block_hash


class ParentHashes:
    """The parent of each block hash seen lately. Thread-safe and bounded."""

    def __init__(self, max_hashes: int) -> None:
        self._max_hashes = max_hashes
        self._parents: dict[bytes, bytes] = {}
        self._lock = threading.Lock()

    def add(self, parent: bytes, block_hash: bytes) -> None:
        """Remember one link."""
        with self._lock:
            self._put(parent, block_hash)

    def add_chain(self, root: bytes, block_hashes: Sequence[bytes]) -> None:
        """Remember a prompt's links."""
        with self._lock:
            for parent, block_hash in zip((root, *block_hashes), block_hashes, strict=False):
                self._put(parent, block_hash)

    def get_all(self, block_hashes: Iterable[bytes]) -> list[bytes]:
        """Return the parent of each, empty where it was forgotten."""
        with self._lock:
            return [self._parents.get(block_hash, b"") for block_hash in block_hashes]

    def _put(self, parent: bytes, block_hash: bytes) -> None:
        self._parents.pop(block_hash, None)
        self._parents[block_hash] = parent
        if len(self._parents) > self._max_hashes:
            del self._parents[next(iter(self._parents))]
