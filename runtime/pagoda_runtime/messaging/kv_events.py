"""Tells the routers which blocks a process holds: stored and evicted hashes, in order, durably.

Changes within a short interval travel together. Whoever holds the blocks is the truth: a snapshot
of all of them goes out at the start, at intervals, when an event may have been lost and when who
keeps the index asks for one. So a gap heals itself, and nothing queues up.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

from opentelemetry.context import Context

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.tasks.retry import retry_delay

logger = logging.getLogger(__name__)

MAX_HASHES = 16_384  # of each kind in one message: together 512 KiB, half of what NATS takes
SNAPSHOT_PAUSE_SECONDS = 5.0  # between snapshots, however often they are asked for
_PUBLISH_SECONDS = 5.0
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TierBlocks:
    """Hashes of one tier: what it gained and lost, each hash in one of the two, or all it holds."""

    tier: "kv_event_pb2.Tier.ValueType"
    stored: Sequence[bytes]
    evicted: Sequence[bytes] = ()


class Holder(Protocol):
    """Who holds blocks."""

    def take_changes(self) -> Iterable[TierBlocks] | None:
        """Return and forget what changed since the last call; None if only a snapshot can say."""

    async def held(self) -> Iterable[TierBlocks]:
        """Return all that each tier holds."""


class KvEventPublisher:
    """Publishes a holder's changes and snapshots.

    Args:
        bus: events are stored by it.
        holder: asked from the event loop; must have `wake` called there after a change.
        worker_id: whose blocks.
        epoch: of this worker.
        interval_seconds: how long changes are collected.
        kv_identity: 16 bytes, if all blocks are of one.
        snapshot_interval_seconds: the longest time between snapshots.
        clock: seconds, of snapshots.
    """

    def __init__(
        self,
        bus: Bus,
        holder: Holder,
        *,
        worker_id: str,
        epoch: str,
        interval_seconds: float,
        kv_identity: bytes = b"",
        snapshot_interval_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus, self._holder = bus, holder
        self._worker_id, self._epoch = worker_id, epoch
        self._kv_identity = kv_identity
        self._interval_seconds = interval_seconds
        self._snapshot_interval_seconds = snapshot_interval_seconds
        self._clock = clock
        self._sequence = 0
        self._snapshot_due = clock()
        self._last_snapshot = -math.inf
        self._is_woken = asyncio.Event()

    async def listen(self) -> None:
        """Have snapshots asked for, and hear when the stream loses what it held."""
        self._bus.watch_stream(subjects.KV_EVENTS_STREAM, [subjects.KV_EVENTS_ALL])
        await self._bus.subscribe(
            subjects.kv_snapshot(self._worker_id),
            kv_event_pb2.KvSnapshotRequest,
            self.on_snapshot_request,
        )

    def wake(self) -> None:
        """Have changes published soon; called from the event loop."""
        self._is_woken.set()

    async def on_snapshot_request(
        self, request: kv_event_pb2.KvSnapshotRequest, _: Context
    ) -> None:
        """Publish a snapshot soon, though not at once after another one."""
        if request.epoch == self._epoch:
            due = max(self._clock(), self._last_snapshot + SNAPSHOT_PAUSE_SECONDS)
            self._snapshot_due = min(self._snapshot_due, due)
            self.wake()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            try:
                await self.publish_once()
            except BusError as error:
                logger.warning("KV events not published, a snapshot will follow: %s", error)
                await asyncio.sleep(retry_delay(_RETRY_SECONDS))
                continue
            seconds = self._snapshot_due - self._clock()
            try:
                async with asyncio.timeout(None if seconds == math.inf else max(0.0, seconds)):
                    await self._is_woken.wait()
                await asyncio.sleep(self._interval_seconds)
            except TimeoutError:
                continue

    async def publish_once(self) -> None:
        """Publish what changed since the last call, or a snapshot if one is due.

        Raises:
            BusError: an event may be lost; the next call publishes a snapshot.
        """
        self._is_woken.clear()
        tiers = self._holder.take_changes()
        is_snapshot = tiers is None or self._clock() >= self._snapshot_due
        if tiers is None or is_snapshot:
            self._snapshot_due = math.inf  # who asks while this one is published gets another
            tiers = await self._holder.held()
        try:
            for blocks in tiers:
                if is_snapshot or blocks.stored or blocks.evicted:
                    await self._publish(blocks, is_snapshot)
        except BusError:
            self._snapshot_due = -math.inf
            raise
        if is_snapshot:
            now = self._last_snapshot = self._clock()
            asked = max(self._snapshot_due, now + SNAPSHOT_PAUSE_SECONDS)
            self._snapshot_due = min(asked, now + self._snapshot_interval_seconds)

    async def _publish(self, blocks: TierBlocks, is_snapshot: bool) -> None:
        parts = [*zip_longest(_parts(blocks.stored), _parts(blocks.evicted), fillvalue=b"")]
        for number, (stored, evicted) in enumerate(parts, start=1):
            self._sequence += 1
            event = kv_event_pb2.KvEvent(
                worker_id=self._worker_id,
                epoch=self._epoch,
                sequence=self._sequence,
                tier=blocks.tier,
                stored=stored,
                evicted=evicted,
                kv_identity=self._kv_identity,
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
    return [b"".join(hashes[i : i + MAX_HASHES]) for i in range(0, max(1, len(hashes)), MAX_HASHES)]
