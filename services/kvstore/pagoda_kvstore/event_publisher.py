"""Publishes which blocks the store holds, so that routers can plan fetches.

Changes within a short interval travel together. A snapshot goes out at the start, at intervals,
whenever an event may have been lost, and when whoever keeps the index asks for one: the truth is
here, and one lost event never stays wrong for long.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest

from opentelemetry.context import Context

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_kvstore.change_log import TierName
from pagoda_kvstore.codec import TIERS
from pagoda_kvstore.store import BlockStore
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.tasks.retry import retry_delay

# Of each kind in one message: together 512 KiB, half of what NATS takes.
_MAX_HASHES = 16_384
_PUBLISH_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_SNAPSHOT_PAUSE_SECONDS = 5.0  # between snapshots, however often they are asked for

logger = logging.getLogger(__name__)


class EventPublisher:
    """Turns the store's change log into KvEvents on JetStream."""

    def __init__(
        self,
        bus: Bus,
        store: BlockStore,
        *,
        worker_id: str,
        epoch: str,
        interval_seconds: float,
        snapshot_interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Publish as `worker_id`; the change log must call `notify` at its first change."""
        self._bus, self._store = bus, store
        self._worker_id, self._epoch = worker_id, epoch
        self._interval_seconds = interval_seconds
        self._snapshot_interval_seconds = snapshot_interval_seconds
        self._clock = clock
        self._sequence = 0
        self._snapshot_due = clock()
        self._last_snapshot = -math.inf
        self._has_changes = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def notify(self) -> None:
        """Wake the publisher; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._has_changes.set)

    async def on_snapshot_request(
        self, request: kv_event_pb2.KvSnapshotRequest, _: Context
    ) -> None:
        """Publish a snapshot soon, though not at once after another one."""
        if request.epoch == self._epoch:
            due = max(self._clock(), self._last_snapshot + _SNAPSHOT_PAUSE_SECONDS)
            self._snapshot_due = min(self._snapshot_due, due)
            self._has_changes.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            try:
                await self.publish_once()
            except BusError as error:
                logger.warning("KV events not published, a snapshot will follow: %s", error)
                self._snapshot_due = self._clock()
                await asyncio.sleep(retry_delay(_RETRY_SECONDS))
                continue
            try:
                async with asyncio.timeout(max(0.0, self._snapshot_due - self._clock())):
                    await self._has_changes.wait()
                await asyncio.sleep(self._interval_seconds)
            except TimeoutError:
                continue

    async def publish_once(self) -> None:
        """Publish what changed since the last call, or a snapshot if one is due.

        Raises:
            BusError: an event may be lost; a snapshot has to follow.
        """
        self._has_changes.clear()
        log = self._store.changes
        is_snapshot = self._clock() >= self._snapshot_due or log.has_overflowed
        for tier in TierName:
            changes = log.take(tier)
            if is_snapshot:
                # In a thread: a full NVMe tier is a million hashes, which gRPC should not wait for.
                held = await asyncio.to_thread(self._store.hashes, tier)
                await self._publish(tier, held, (), is_snapshot=True)
            elif changes.stored or changes.evicted:
                await self._publish(tier, changes.stored, changes.evicted)
        if is_snapshot:
            log.has_overflowed = False
            self._last_snapshot = self._clock()
            self._snapshot_due = self._last_snapshot + self._snapshot_interval_seconds

    async def _publish(
        self,
        tier: TierName,
        stored: Sequence[bytes],
        evicted: Sequence[bytes],
        *,
        is_snapshot: bool = False,
    ) -> None:
        parts = [*zip_longest(_parts(stored), _parts(evicted), fillvalue=b"")]
        for number, (part_stored, part_evicted) in enumerate(parts, start=1):
            self._sequence += 1
            event = kv_event_pb2.KvEvent(
                worker_id=self._worker_id,
                epoch=self._epoch,
                sequence=self._sequence,
                tier=TIERS[tier],
                stored=part_stored,
                evicted=part_evicted,
                is_snapshot=is_snapshot and number == 1,
                snapshot_part=number if is_snapshot else 0,
                num_snapshot_parts=len(parts) if is_snapshot else 0,
            )
            await self._bus.publish_durable(
                subjects.kv_events(self._worker_id),
                event,
                message_id=f"{self._worker_id}:{self._epoch}:{self._sequence}",
                timeout_seconds=_PUBLISH_SECONDS,
            )


def _parts(hashes: Sequence[bytes]) -> list[bytes]:
    """Return the hashes packed, in parts small enough for one message; at least one part."""
    return [
        b"".join(hashes[i : i + _MAX_HASHES]) for i in range(0, max(1, len(hashes)), _MAX_HASHES)
    ]
