"""Keeps the prefix index in Redis: applies KV events, keeps what lives, asks for what is missing.

The truth is what the workers hold. Events come in the order of their stream, one at a time over all
routers. A set that is not known to be whole, because Redis was wiped, an event is missing or there
was no room, is asked of its worker again. Knows how much the index may take of Redis.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, RedisError

from pagoda.rpc.v1.kv_event_pb2 import KvEvent, KvSnapshotRequest
from pagoda_router import metrics
from pagoda_router.index import redis_keys
from pagoda_router.index.event_batch import TIERS, EventBatch, Known
from pagoda_router.index.redis_keys import WHOLE, IndexTier
from pagoda_router.workers.registry import WorkerRegistry
from pagoda_router.workers.snapshot import WorkerRole, WorkerSnapshot
from pagoda_runtime.block_hash import HASH_BYTES
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

DURABLE = "router-index"

# One member of a set in Redis' memory, its share of the table included.
BYTES_PER_BLOCK = 72
_ROOM_AGAIN = 0.9  # a full index takes blocks again once it has no more than this of what it may
_FULL_SECONDS = 10.0  # until a Redis that had no memory is tried again: its size says nothing
_REDIS_SECONDS = 5.0
_ASK_SECONDS = 10  # until a worker is asked again, by whichever router

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
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write at most about `max_bytes`; sets expire `ttl_seconds` after their worker is gone."""
        self._redis, self._bus, self._registry = redis, bus, registry
        self._ttl_seconds, self._check_seconds = ttl_seconds, check_seconds
        self._max_blocks = max_bytes // BYTES_PER_BLOCK
        self._num_blocks = 0  # as of the last look, and what was applied here since
        self._is_full = False
        self._full_until = 0.0
        self._clock = clock
        self._retired: list[tuple[str, str]] = []
        self.problem = ""  # what is wrong with the index now, for people

    def retire(self, worker_id: str, epoch: str) -> None:
        """Delete an earlier life of a worker from the index, soon."""
        self._retired.append((worker_id, epoch))

    async def apply(self, events: Sequence[KvEvent]) -> None:
        """Write a batch of events in one transaction; without room, only what they evict.

        Raises:
            RedisError: nothing was written.
            TimeoutError: Redis did not answer; the batch may be written.
        """
        current = [event for event in events if self._is_current(event)]
        metrics.EVENTS_IGNORED.inc(len(events) - len(current))
        if not current:
            return
        num_blocks = sum(len(event.stored) for event in current) // HASH_BYTES
        if self._num_blocks + num_blocks > self._max_blocks:
            self._note_full(f"it may have {self._max_blocks} blocks")
        async with asyncio.timeout(_REDIS_SECONDS):
            if not self._is_full:
                try:
                    await self._store(current)
                except OutOfMemoryError:
                    self._full_until = self._clock() + _FULL_SECONDS
                    self._note_full("Redis is at its maxmemory")
                else:
                    self._num_blocks += num_blocks
                    return
            await self._forget(current)

    async def run(self) -> None:
        """Maintain the index until cancelled."""
        while True:
            try:
                await self.maintain()
            except (RedisError, BusError, OSError, TimeoutError, RuntimeError) as error:
                # A RuntimeError is uvloop's, of a connection that has died unnoticed.
                reason = f"{type(error).__name__}: {error}".removesuffix(": ")
                problem = f"routing without prefix affinity: {reason}"
                if problem != self.problem:  # it is tried each second, and may last for days
                    logger.warning("the prefix index cannot be maintained now: %s", reason)
                self.problem = problem
            else:
                self.problem = "full: new blocks are not noted" if self._is_full else ""
            await asyncio.sleep(self._check_seconds)

    async def maintain(self) -> None:
        """Keep the sets of workers that are alive, drop retired ones, ask for what is missing.

        Raises:
            RedisError: Redis failed.
            BusError: a worker cannot be asked now.
            TimeoutError: Redis did not answer.
        """
        workers = self._registry.everyone()
        sets = [(worker, tier) for worker in workers for tier in _tiers(worker)]
        keys = [redis_keys.blocks(w.worker_id, w.epoch, tier) for w, tier in sets]
        retired = list(self._retired)
        async with asyncio.timeout(_REDIS_SECONDS), self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.scard(key)
            for key in keys:
                pipe.sismember(key, WHOLE)
            for key in keys:
                pipe.expire(key, self._ttl_seconds)
            for worker in workers:
                key = redis_keys.sequence(worker.worker_id, worker.epoch)
                pipe.expire(key, self._ttl_seconds)
            for life in retired:
                pipe.unlink(*redis_keys.all_of(*life))
            answers = await pipe.execute()
        del self._retired[: len(retired)]
        sizes, wholes = answers[: len(sets)], answers[len(sets) : 2 * len(sets)]
        self._note_sizes([(tier, size) for (_, tier), size in zip(sets, sizes, strict=True)])
        lacking = {
            worker.worker_id: worker
            for (worker, _), is_whole in zip(sets, wholes, strict=True)
            if not is_whole
        }
        metrics.INDEX_INCOMPLETE.set(len(lacking))
        if lacking and not self._is_full:
            await self._ask(list(lacking.values()))

    async def _store(self, events: Sequence[KvEvent]) -> None:
        known = await Known.read(self._redis, events)
        async with self._redis.pipeline() as pipeline:
            batch = EventBatch(pipeline, known, self._ttl_seconds)
            for event in events:
                batch.add(event)
            await pipeline.execute()
        metrics.EVENTS_APPLIED.inc(batch.num_applied)
        metrics.EVENTS_IGNORED.inc(batch.num_repeated)
        metrics.EVENT_GAPS.inc(batch.num_gaps)

    async def _forget(self, events: Sequence[KvEvent]) -> None:
        # No transaction: a Redis that is out of memory queues none.
        async with self._redis.pipeline(transaction=False) as pipeline:
            batch = EventBatch(pipeline, Known(), self._ttl_seconds)
            for event in events:
                batch.add_without_storing(event)
            await pipeline.execute()
        metrics.EVENTS_FORGOTTEN.inc(len(events))

    async def _ask(self, workers: Sequence[WorkerSnapshot]) -> None:
        """Ask for snapshots, each worker once in a while over all routers."""
        async with asyncio.timeout(_REDIS_SECONDS), self._redis.pipeline(transaction=False) as pipe:
            for worker in workers:
                key = redis_keys.asked(worker.worker_id, worker.epoch)
                pipe.set(key, 1, nx=True, ex=_ASK_SECONDS)
            is_ours = await pipe.execute()
        for worker, is_mine in zip(workers, is_ours, strict=True):
            if is_mine:
                logger.info("the prefix index lacks blocks of %s: asking it", worker.worker_id)
                metrics.SNAPSHOTS_ASKED.inc()
                request = KvSnapshotRequest(worker_id=worker.worker_id, epoch=worker.epoch)
                await self._bus.publish(subjects.kv_snapshot(worker.worker_id), request)

    def _note_sizes(self, sizes: Sequence[tuple[IndexTier, int]]) -> None:
        for tier in IndexTier:
            metrics.INDEX_BLOCKS.labels(tier.value).set(sum(n for t, n in sizes if t is tier))
        self._num_blocks = sum(size for _, size in sizes)
        has_room = self._num_blocks < _ROOM_AGAIN * self._max_blocks
        if self._is_full and has_room and self._clock() >= self._full_until:
            self._is_full = False
            metrics.INDEX_FULL.set(0)

    def _note_full(self, reason: str) -> None:
        if not self._is_full:
            logger.warning("the prefix index is full, new blocks are not noted: %s", reason)
        self._is_full = True
        metrics.INDEX_FULL.set(1)

    def _is_current(self, event: KvEvent) -> bool:
        return event.tier in TIERS and not self._registry.is_outdated(event.worker_id, event.epoch)


def _tiers(worker: WorkerSnapshot) -> tuple[IndexTier, ...]:
    if worker.role is WorkerRole.KVSTORE:
        return IndexTier.CPU, IndexTier.NVME
    return (IndexTier.DEVICE,)
