"""A fence around blocks that an importing sequence owns: nobody writes them once it has ended.

Writers (transfers, fetches) run in threads while the step loop steps. `close` waits for the write
in progress: on cpu a chunk (1 MiB, one block at least), from a mapped pool on a GPU a message's
blocks (256 MiB). Afterwards every write is refused. So close first, then let the engine free.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

import torch


class WritableBlocks(Protocol):
    """The part of the engine's KvCache that a writer uses."""

    @property
    def num_layers(self) -> int:
        """Layers of one block."""
        ...

    @property
    def place_bytes(self) -> int:
        """Bytes of one part of a block; of all of it, where it has one."""
        ...

    def part_bytes(self, layers: range | None = None) -> int:
        """Bytes of these layers of one block; ValueError if it has no such layers."""
        ...

    def write_blocks(
        self,
        block_ids: Sequence[int],
        blocks: torch.Tensor,
        layers: range | None = None,
        *,
        expected: torch.Tensor | None = None,
    ) -> list[int]:
        """Copy uint8 ``[N, part_bytes]`` into these blocks; returns positions that were not."""
        ...

    def copy_blocks(
        self,
        source: torch.Tensor,
        source_ids: Sequence[int],
        block_ids: Sequence[int],
        layers: range | None = None,
        *,
        expected: torch.Tensor,
    ) -> list[int]:
        """Copy blocks of another pool into these; returns positions that hold nothing now."""
        ...


class ReservedBlocks:
    """Logical blocks [first_block, num_blocks) of a sequence, writable until `close`.

    Blocks before ``first_block`` are never written: they are shared with others and valid already,
    or nothing reads them.
    A block is complete when all its layers were written, in any order and number of writes; of the
    first `num_partial` blocks those of `first_part` are enough, and others go nowhere.
    """

    def __init__(
        self,
        kv_cache: WritableBlocks,
        block_ids: Sequence[int],
        *,
        first_block: int,
        num_partial: int = 0,
        first_part: range | None = None,
    ) -> None:
        self._kv_cache = kv_cache
        self._block_ids = tuple(block_ids)
        self._first_block = first_block
        self._lock = threading.Lock()
        self._is_open = True
        self._all_layers = (1 << kv_cache.num_layers) - 1
        self._num_partial = num_partial if first_part is not None else 0
        self._first_part = self._bits(first_part)
        self._written: dict[int, int] = {}  # block -> a bit for each layer that was written

    @property
    def first_block(self) -> int:
        """First logical block that may be written."""
        return self._first_block

    @property
    def num_blocks(self) -> int:
        """Logical blocks of the sequence."""
        return len(self._block_ids)

    @property
    def num_layers(self) -> int:
        """Layers of each block."""
        return self._kv_cache.num_layers

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._kv_cache.part_bytes()

    @property
    def place_bytes(self) -> int:
        """Bytes of one part of a block; of all of it, where it has one."""
        return self._kv_cache.place_bytes

    @property
    def is_in_parts(self) -> bool:
        """Whether blocks have several parts."""
        return self.place_bytes != self.block_bytes

    @property
    def is_open(self) -> bool:
        """Whether writing is still allowed."""
        return self._is_open

    @property
    def num_complete(self) -> int:
        """Blocks that were written, all layers of them."""
        return sum(map(self.is_complete, tuple(self._written)))

    def is_complete(self, index: int) -> bool:
        """Tell whether all layers of a block were written."""
        needed = self._first_part if index < self._num_partial else self._all_layers
        return self._written.get(index, 0) & needed == needed

    def incomplete(self) -> list[int]:
        """Blocks of which some layers were written and others not, ascending."""
        return sorted(index for index in tuple(self._written) if not self.is_complete(index))

    def covers(self, index: int) -> bool:
        """Tell whether logical block `index` may be written."""
        return self._first_block <= index < len(self._block_ids)

    def part_bytes(self, layers: range | None) -> int:
        """Bytes of these layers of one block; ValueError if it has no such layers."""
        return self._kv_cache.part_bytes(layers)

    def write(
        self, indices: Sequence[int], blocks: torch.Tensor, layers: range | None = None
    ) -> bool:
        """Write verified blocks, uint8 ``[N, part_bytes]``. False: closed, none written."""
        return self.write_if_equal(indices, blocks, layers, expected=None) is not None

    def write_if_equal(
        self,
        indices: Sequence[int],
        blocks: torch.Tensor,
        layers: range | None,
        *,
        expected: torch.Tensor | None,
    ) -> list[int] | None:
        """Write those blocks whose digest is the expected one.

        Args:
            indices: logical blocks, each once.
            blocks: uint8 ``[N, part_bytes]``, on any device.
            layers: which of each block.
            expected: uint8 ``[N, 16]``, see `KvCache.write_blocks`; None: all are verified.

        Returns:
            Indices of those that were not written; None: closed, none written.
        """
        block_ids = self._physical(indices)
        with self._lock:
            if not self._is_open:
                return None
            bad = self._kv_cache.write_blocks(block_ids, blocks, layers, expected=expected)
            bad_indices = [indices[position] for position in bad]
            self._note(set(indices).difference(bad_indices), layers)
            return bad_indices

    def copy(
        self,
        indices: Sequence[int],
        source: torch.Tensor,
        source_ids: Sequence[int],
        layers: range | None,
        *,
        expected: torch.Tensor,
    ) -> list[int] | None:
        """Copy blocks from another pool, and keep those whose digest is the expected one.

        Args:
            indices: logical blocks, each once.
            source: see `KvCache.copy_blocks`.
            source_ids: which of its blocks.
            layers: which of each block.
            expected: uint8 ``[N, 16]``, see `KvCache.write_blocks`.

        Returns:
            Indices of those that hold nothing now; None: closed, nothing was copied.
        """
        block_ids = self._physical(indices)
        with self._lock:
            if not self._is_open:
                return None
            self._forget(indices, layers)  # also if the copy fails halfway
            bad = self._kv_cache.copy_blocks(
                source, source_ids, block_ids, layers, expected=expected
            )
            bad_indices = [indices[position] for position in bad]
            self._note(set(indices).difference(bad_indices), layers)
            return bad_indices

    def _physical(self, indices: Sequence[int]) -> list[int]:
        if not all(map(self.covers, indices)):
            raise ValueError(
                f"blocks {list(indices)} are not all in [{self._first_block}, {self.num_blocks})"
            )
        return [self._block_ids[index] for index in indices]

    def _note(self, indices: set[int], layers: range | None) -> None:
        bits = self._bits(layers)
        for index in indices:
            self._written[index] = self._written.get(index, 0) | bits

    def _forget(self, indices: Sequence[int], layers: range | None) -> None:
        bits = self._bits(layers)
        for index in indices:
            if index in self._written:
                self._written[index] &= ~bits

    def _bits(self, layers: range | None) -> int:
        return self._all_layers if layers is None else ((1 << len(layers)) - 1) << layers.start

    def close(self) -> int:
        """Refuse writes from now on. Returns the number of valid leading blocks. Idempotent."""
        with self._lock:
            self._is_open = False
            count = self._first_block
            while self.is_complete(count):
                count += 1
            return count
