"""What a batch of KV events does to the index, as commands of one Redis transaction.

Knows what came before only through `Known`. Decides what an event is worth: a step further, already
applied, a part of a snapshot, or one after a gap. Knows no clock, no bus and no budget.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from pagoda.rpc.v1.kv_event_pb2 import TIER_CPU, TIER_DEVICE, TIER_NVME, KvEvent
from pagoda_router.index import redis_keys
from pagoda_router.index.redis_keys import WHOLE, IndexTier
from pagoda_runtime.block_hash import split_hashes

TIERS = {TIER_DEVICE: IndexTier.DEVICE, TIER_CPU: IndexTier.CPU, TIER_NVME: IndexTier.NVME}
_CHUNK_HASHES = 2048


@dataclass(slots=True)
class Known:
    """What the index has of the workers of a batch."""

    sequences: dict[str, int] = field(default_factory=dict)  # last applied, by its key
    incoming: set[str] = field(default_factory=set)  # keys of snapshots of which a part is there

    @classmethod
    async def read(cls, redis: Redis, events: Sequence[KvEvent]) -> "Known":
        """Read it."""
        sequence_keys = [*{redis_keys.sequence(e.worker_id, e.epoch): None for e in events}]
        incoming_keys = [*{_incoming(event): None for event in events if event.snapshot_part > 1}]
        async with redis.pipeline(transaction=False) as pipeline:
            pipeline.mget(sequence_keys)
            for key in incoming_keys:
                pipeline.exists(key)
            values, *found = await pipeline.execute()
        return cls(
            {key: int(n) for key, n in zip(sequence_keys, values, strict=True) if n is not None},
            {key for key, exists in zip(incoming_keys, found, strict=True) if exists},
        )


@dataclass(slots=True)
class EventBatch:
    """Queues the commands of events, in their order, and counts what they were."""

    pipeline: Pipeline
    known: Known
    ttl_seconds: int
    num_applied: int = 0
    num_repeated: int = 0  # applied before: their acknowledgement was lost
    num_gaps: int = 0

    def add(self, event: KvEvent) -> None:
        """Apply an event that there is room for."""
        sequence_key = redis_keys.sequence(event.worker_id, event.epoch)
        last = self.known.sequences.get(sequence_key, 0)
        if event.sequence <= last:
            self.num_repeated += 1
            return
        if event.sequence != last + 1:
            self.num_gaps += 1
            self._mark_incomplete(event)
        is_after_gap = event.sequence != last + 1
        if event.is_snapshot or event.snapshot_part:
            self._add_part(event, is_after_gap=is_after_gap)
        else:
            key = redis_keys.blocks(event.worker_id, event.epoch, TIERS[event.tier])
            self._store(key, event.stored)
            self._evict(key, event.evicted)
            self.pipeline.expire(key, self.ttl_seconds)
        self.pipeline.set(sequence_key, event.sequence, ex=self.ttl_seconds)
        self.known.sequences[sequence_key] = event.sequence
        self.num_applied += 1

    def add_without_storing(self, event: KvEvent) -> None:
        """Take what an event evicts and forget the rest: there is no room. Adds nothing to Redis.

        The sets are not whole from here on, and the number of the last event is not known, so that
        a snapshot is asked for once there is room again.
        """
        self._mark_incomplete(event)
        self.pipeline.unlink(redis_keys.sequence(event.worker_id, event.epoch), _incoming(event))
        key = redis_keys.blocks(event.worker_id, event.epoch, TIERS[event.tier])
        self._evict(key, event.evicted)

    def _add_part(self, event: KvEvent, *, is_after_gap: bool) -> None:
        """Collect a snapshot beside the set that it replaces, so that readers never see half."""
        incoming = _incoming(event)
        if event.is_snapshot:
            self.pipeline.unlink(incoming)
        elif is_after_gap or incoming not in self.known.incoming:
            self.pipeline.unlink(incoming)
            self.known.incoming.discard(incoming)
            self._mark_incomplete(event)
            return
        self._store(incoming, event.stored)
        self.known.incoming.add(incoming)
        if event.snapshot_part >= event.num_snapshot_parts:
            key = redis_keys.blocks(event.worker_id, event.epoch, TIERS[event.tier])
            self.pipeline.sadd(incoming, WHOLE)
            self.pipeline.unlink(key)
            self.pipeline.rename(incoming, key)
            self.pipeline.expire(key, self.ttl_seconds)
            self.known.incoming.discard(incoming)
        else:
            self.pipeline.expire(incoming, self.ttl_seconds)

    def _mark_incomplete(self, event: KvEvent) -> None:
        """Note that something is missing; of which tier nobody knows."""
        for tier in IndexTier:
            self.pipeline.srem(redis_keys.blocks(event.worker_id, event.epoch, tier), WHOLE)

    def _store(self, key: str, packed: bytes) -> None:
        for hashes in _chunks(packed):
            self.pipeline.sadd(key, *hashes)

    def _evict(self, key: str, packed: bytes) -> None:
        for hashes in _chunks(packed):
            self.pipeline.srem(key, *hashes)


def _incoming(event: KvEvent) -> str:
    return redis_keys.incoming(event.worker_id, event.epoch, TIERS[event.tier])


def _chunks(packed: bytes) -> Iterator[tuple[bytes, ...]]:
    hashes = split_hashes(packed)
    for start in range(0, len(hashes), _CHUNK_HASHES):
        yield hashes[start : start + _CHUNK_HASHES]
