"""Pools of producers that one consumer has open, each until its producer's life is over.

Runs on the event loop; opening happens in a thread.
"""

import asyncio
import collections
import logging
from concurrent.futures import Executor
from dataclasses import dataclass

from pagoda_engine import KvCache
from pagoda_engine.cache import (
    Opener,
    PeerPool,
    PeerPoolError,
    PoolHandle,
    PoolKind,
    open_peer_pool,
)
from pagoda_worker.kv_transfer.nixl_pool import NixlReader

logger = logging.getLogger(__name__)

MAX_POOLS = 16


@dataclass(frozen=True, slots=True)
class _Entry:
    handle: PoolHandle
    opening: "asyncio.Future[PeerPool]"

    def close(self) -> None:
        """Close the pool, now or once it is open."""
        if self.opening.done():
            _close(self.opening)
        else:
            self.opening.add_done_callback(_close)


class PeerPools:
    """At most one pool for each producer.

    Args:
        kv_cache: what the blocks are read for.
        executor: threads that open pools.
    """

    def __init__(self, kv_cache: KvCache, executor: Executor) -> None:
        self._kv_cache = kv_cache
        self._executor = executor
        self._openers: dict[PoolKind, Opener] = {PoolKind.NIXL: NixlReader().open}
        self._entries: collections.OrderedDict[str, _Entry] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def open(self, producer_id: str, handle: PoolHandle) -> PeerPool | None:
        """Return a producer's pool; None, and a line in the log, if it cannot be opened here."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.handle != handle:  # a handle names one life of a producer
            self.lose(producer_id)
            opening = asyncio.get_running_loop().run_in_executor(
                self._executor, open_peer_pool, handle, self._kv_cache, self._openers
            )
            entry = self._entries[producer_id] = _Entry(handle, opening)
            if len(self._entries) > MAX_POOLS:  # unmapped when the last push lets go of it
                self._entries.popitem(last=False)
        self._entries.move_to_end(producer_id)
        try:
            return await asyncio.shield(entry.opening)
        except PeerPoolError as error:
            if self._entries.get(producer_id) is entry:  # the first of those that waited
                del self._entries[producer_id]
                logger.warning(
                    "KV blocks of %s come as gRPC payloads, its %s pool cannot be opened: %s",
                    producer_id,
                    handle.kind.value,
                    error,
                )
            return None

    def lose(self, producer_id: str) -> None:
        """Read nothing more from a producer's pool: its life is over, or a read failed."""
        entry = self._entries.pop(producer_id, None)
        if entry is not None:
            entry.close()

    def close(self) -> None:
        """Close all pools."""
        for producer_id in tuple(self._entries):
            self.lose(producer_id)


def _close(opening: "asyncio.Future[PeerPool]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
