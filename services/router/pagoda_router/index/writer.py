"""Keeps the prefix index in Redis: applies KV events, keeps what is alive, rebuilds what was lost.

Events come in the order of their stream, one batch at a time over all routers. They are set
operations, so applying one twice, or the whole stream again from its start, ends in the same index.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_router import metrics
from pagoda_router.index import redis_keys
from pagoda_router.index.redis_keys import IndexTier
from pagoda_router.workers.registry import WorkerRegistry
from pagoda_runtime.block_hash import split_hashes
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

DURABLE = "router-index"

_TIERS = {
    kv_event_pb2.TIER_DEVICE: IndexTier.DEVICE,
    kv_event_pb2.TIER_CPU: IndexTier.CPU,
    kv_event_pb2.TIER_NVME: IndexTier.NVME,
}
_CHUNK_HASHES = 2048
_REDIS_SECONDS = 5.0
_LOCK_SECONDS = 30

logger = logging.getLogger(__name__)


class IndexWriter:
    """Writes the index; one per router, any of them may do each part."""

    def __init__(
        self,
        redis: Redis,
        bus: Bus,
        registry: WorkerRegistry,
        *,
        ttl_seconds: int,
        check_seconds: float,
    ) -> None:
        """Write to `redis`; sets of workers that are not alive expire after `ttl_seconds`."""
        self._redis, self._bus, self._registry = redis, bus, registry
        self._ttl_seconds, self._check_seconds = ttl_seconds, check_seconds
        self._retired: list[tuple[str, str]] = []
        self._wake = asyncio.Event()

    def retire(self, worker_id: str, epoch: str) -> None:
        """Delete an earlier life of a worker from the index, soon."""
        self._retired.append((worker_id, epoch))

    def check_now(self) -> None:
        """Look at once whether the index is whole."""
        self._wake.set()

    async def apply(self, events: Sequence[kv_event_pb2.KvEvent]) -> None:
        """Write a batch of events in one transaction.

        Raises:
            RedisError: nothing was written.
            TimeoutError: Redis did not answer; the batch may be written.
        """
        async with asyncio.timeout(_REDIS_SECONDS), self._redis.pipeline() as pipeline:
            for event in events:
                if self._is_current(event):
                    self._queue(pipeline, event)
                    metrics.EVENTS_APPLIED.inc()
                else:
                    metrics.EVENTS_IGNORED.inc()
            await pipeline.execute()

    async def run(self) -> None:
        """Maintain the index until cancelled."""
        while True:
            try:
                await self.maintain()
            except (RedisError, BusError, OSError, TimeoutError) as error:
                logger.warning("the prefix index cannot be maintained now: %r", error)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._check_seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def maintain(self) -> None:
        """Keep the sets of workers that are alive, drop retired ones, and rebuild a wiped index.

        Raises:
            RedisError: Redis failed.
            BusError: the events cannot be replayed now.
            TimeoutError: Redis did not answer.
        """
        workers = self._registry.everyone()
        keys = [key for w in workers for key in redis_keys.all_blocks(w.worker_id, w.epoch)]
        retired, self._retired = self._retired, []
        async with asyncio.timeout(_REDIS_SECONDS), self._redis.pipeline(transaction=False) as pipe:
            pipe.expire(redis_keys.MARKER, self._ttl_seconds)
            for key in keys:
                pipe.expire(key, self._ttl_seconds)
            for key in keys:
                pipe.scard(key)
            for worker_id, epoch in retired:
                pipe.unlink(*redis_keys.all_blocks(worker_id, epoch))
            is_whole, *answers = await pipe.execute()
        sizes = answers[len(keys) : 2 * len(keys)]
        for position, tier in enumerate(IndexTier):
            metrics.INDEX_BLOCKS.labels(tier.value).set(sum(sizes[position :: len(IndexTier)]))
        if not is_whole:
            await self._rebuild()

    async def _rebuild(self) -> None:
        """Read the stream again from its start. One router does it, the others find it done."""
        token = secrets.token_hex(8)
        async with asyncio.timeout(_REDIS_SECONDS):
            has_lock = await self._redis.set(
                redis_keys.REBUILD_LOCK, token, nx=True, ex=_LOCK_SECONDS
            )
        if not has_lock:
            return
        logger.warning("the prefix index is gone: reading %s again", subjects.KV_EVENTS_STREAM)
        try:
            await self._bus.replay(subjects.KV_EVENTS_STREAM, DURABLE)
            async with asyncio.timeout(_REDIS_SECONDS):
                await self._redis.set(redis_keys.MARKER, token, ex=self._ttl_seconds)
            metrics.REPLAYS.inc()
        finally:
            async with asyncio.timeout(_REDIS_SECONDS):
                await self._redis.delete(redis_keys.REBUILD_LOCK)

    def _is_current(self, event: kv_event_pb2.KvEvent) -> bool:
        return event.tier in _TIERS and not self._registry.is_outdated(event.worker_id, event.epoch)

    def _queue(self, pipeline: Pipeline, event: kv_event_pb2.KvEvent) -> None:
        key = redis_keys.blocks(event.worker_id, event.epoch, _TIERS[event.tier])
        if event.is_snapshot:
            pipeline.unlink(key)
        for hashes in _chunks(event.stored):
            pipeline.sadd(key, *hashes)
        for hashes in _chunks(event.evicted):
            pipeline.srem(key, *hashes)
        pipeline.expire(key, self._ttl_seconds)


def _chunks(packed: bytes) -> Iterator[tuple[bytes, ...]]:
    hashes = split_hashes(packed)
    for start in range(0, len(hashes), _CHUNK_HASHES):
        yield hashes[start : start + _CHUNK_HASHES]
