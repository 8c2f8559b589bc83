"""A fence around blocks that an importing sequence owns: nobody writes them once it has ended.

Writers (transfers, fetches) run in threads while the step loop steps. `close` waits for the write
in progress, at most about 1 MiB of copying; afterwards every write is refused. So close first, then
let the engine free.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

import torch


class WritableBlocks(Protocol):
    """The part of the engine's KvCache that a writer uses."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        ...

    def write_blocks(self, block_ids: Sequence[int], blocks: torch.Tensor) -> None:
        """Copy uint8 ``[N, block_bytes]`` into these physical blocks."""
        ...


class ReservedBlocks:
    """Logical blocks [first_block, num_blocks) of a sequence, writable until `close`.

    Blocks before ``first_block`` are shared with others and valid already: they are never written.
    """

    def __init__(
        self, kv_cache: WritableBlocks, block_ids: Sequence[int], *, first_block: int
    ) -> None:
        self._kv_cache = kv_cache
        self._block_ids = tuple(block_ids)
        self._first_block = first_block
        self._lock = threading.Lock()
        self._is_open = True
        self._written: set[int] = set()

    @property
    def first_block(self) -> int:
        """First logical block that may be written."""
        return self._first_block

    @property
    def num_blocks(self) -> int:
        """Logical blocks of the sequence."""
        return len(self._block_ids)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._kv_cache.block_bytes

    @property
    def is_open(self) -> bool:
        """Whether writing is still allowed."""
        return self._is_open

    def covers(self, index: int) -> bool:
        """Tell whether logical block `index` may be written."""
        return self._first_block <= index < len(self._block_ids)

    def write(self, indices: Sequence[int], blocks: torch.Tensor) -> bool:
        """Write verified blocks, ``[N, block_bytes]`` uint8 cpu. False: closed, none written."""
        if not all(map(self.covers, indices)):
            raise ValueError(
                f"blocks {list(indices)} are not all in [{self._first_block}, {self.num_blocks})"
            )
        with self._lock:
            if not self._is_open:
                return False
            self._kv_cache.write_blocks([self._block_ids[index] for index in indices], blocks)
            self._written.update(indices)
            return True

    def close(self) -> int:
        """Refuse writes from now on. Returns the number of valid leading blocks. Idempotent."""
        with self._lock:
            self._is_open = False
            count = self._first_block
            while count in self._written:
                count += 1
            return count
