"""Writes blocks to NVMe behind the caller's back: a bounded queue and one thread.

Blocks are offered right after a put, so what a killed process loses is what the queue still held.
"""

import logging
import threading
from collections import deque

from pagoda_kvstore.block import Block, BlockKey
from pagoda_kvstore.tiers.nvme import NvmeTier

logger = logging.getLogger(__name__)

_BATCH_BLOCKS = 64
_LOOK_SECONDS = 5.0


class WriteBehind:
    """The only caller of `NvmeTier.append`.

    With nothing to write it has the tier look after its folder every `look_seconds`.
    """

    def __init__(
        self, tier: NvmeTier, *, max_queue_bytes: int, look_seconds: float = _LOOK_SECONDS
    ) -> None:
        self.num_dropped = 0  # offered while the queue was full
        self.queued_bytes = 0  # being written included; never exceeds max_queue_bytes
        self._tier, self._max_queue_bytes = tier, max_queue_bytes
        self._look_seconds = look_seconds
        self._queue: deque[Block] = deque()
        self._queued_keys: set[BlockKey] = set()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="nvme-writer", daemon=True)
        self._thread.start()

    def offer(self, block: Block) -> bool:
        """Queue `block` unless it is on NVMe or queued already.

        Returns False if it is not written: the queue is full, or the block is larger than a
        segment.
        """
        with self._changed:
            if block.key in self._queued_keys or block.key in self._tier:
                return True
            if not self._tier.fits(len(block.payload)):
                return False
            if self._is_stopping or self.queued_bytes + len(block.payload) > self._max_queue_bytes:
                self.num_dropped += 1
                return False
            self.queued_bytes += len(block.payload)
            self._queued_keys.add(block.key)
            self._queue.append(block)
            self._changed.notify_all()
            return True

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything queued is written. Blocks. Returns False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued_keys, timeout_seconds)

    def close(self, timeout_seconds: float) -> bool:
        """Write what is queued and end the thread. Blocks. Returns False if not all was written."""
        is_flushed = self.flush(timeout_seconds)
        with self._changed:
            self._is_stopping = True
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join(timeout_seconds)
        return is_flushed and not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_stopping, self._look_seconds)
                if self._is_stopping:
                    return
                batch = [self._queue.popleft() for _ in range(min(_BATCH_BLOCKS, len(self._queue)))]
            try:
                self._tier.append(batch)
            except Exception:  # whatever it was, later blocks are to be written
                logger.exception("%d blocks were not written", len(batch))
            with self._changed:
                self.queued_bytes -= sum(len(block.payload) for block in batch)
                self._queued_keys.difference_update(block.key for block in batch)
                self._changed.notify_all()
