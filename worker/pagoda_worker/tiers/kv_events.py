"""Tells the routers which blocks this worker holds: stored and evicted hashes, in order, durably.

If an event cannot be published the next one is a snapshot, so a gap heals itself and nothing queues
up. Whoever keeps the index may ask for a snapshot: what it says is rebuilt from here, not from what
the stream still remembers.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable

from opentelemetry.context import Context

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_runtime.errors import BusError

logger = logging.getLogger(__name__)

BATCH_SECONDS = 0.15
RETRY_SECONDS = 1.0
SNAPSHOT_PAUSE_SECONDS = 5.0  # between snapshots, however often they are asked for
MAX_HASHES_PER_EVENT = 32_768  # 512 KiB

Publish = Callable[[kv_event_pb2.KvEvent, str], Awaitable[None]]
"""(event, message id for de-duplication) -> when it is stored."""


class KvEventPublisher:
    """Collects changes for 150 ms, then publishes them; starts with a snapshot.

    Args:
        publish: stores one event durably; raises BusError if it could not.
        worker_id: whose blocks.
        epoch: of this worker.
        kv_identity: 16 bytes.
        clock: seconds, of the pause between snapshots.
    """

    def __init__(
        self,
        publish: Publish,
        *,
        worker_id: str,
        epoch: str,
        kv_identity: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish = publish
        self._worker_id = worker_id
        self._epoch = epoch
        self._kv_identity = kv_identity
        self._held: dict[bytes, None] = {}
        self._changed: dict[bytes, bool] = {}  # hash -> is it held now
        self._clock = clock
        self._snapshot_due = -math.inf  # when to publish one; never, if inf
        self._last_snapshot = -math.inf
        self._has_changes = asyncio.Event()
        self._sequence = 0

    def add(self, stored: Iterable[bytes], evicted: Iterable[bytes]) -> None:
        """Note one step's changes; `evicted` is applied after `stored`."""
        for block_hash in stored:
            self._held[block_hash] = None
            self._changed[block_hash] = True
        for block_hash in evicted:
            self._held.pop(block_hash, None)
            self._changed[block_hash] = False
        if self._changed:
            self._has_changes.set()

    async def on_snapshot_request(
        self, request: kv_event_pb2.KvSnapshotRequest, _: Context
    ) -> None:
        """Publish a snapshot soon, though not at once after another one."""
        if request.epoch == self._epoch:
            due = max(self._clock(), self._last_snapshot + SNAPSHOT_PAUSE_SECONDS)
            self._snapshot_due = min(self._snapshot_due, due)
            self._has_changes.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            is_published = await self.publish_changes()
            if not is_published:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            seconds = self._snapshot_due - self._clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if seconds == math.inf else max(0.0, seconds)):
                    await self._has_changes.wait()
            await asyncio.sleep(BATCH_SECONDS)

    async def publish_changes(self) -> bool:
        """Publish what changed, or everything held if a snapshot is due. False: try again."""
        self._has_changes.clear()
        changed, self._changed = self._changed, {}
        is_snapshot = self._clock() >= self._snapshot_due
        if is_snapshot:
            self._snapshot_due = math.inf
            changed = dict.fromkeys(self._held, True)
        num_parts = -(-len(changed) // MAX_HASHES_PER_EVENT)
        if is_snapshot:
            num_parts = max(1, num_parts)  # an empty one says so
        items = iter(changed.items())
        try:
            for number in range(1, num_parts + 1):
                event = self._event(dict(itertools.islice(items, MAX_HASHES_PER_EVENT)))
                if is_snapshot:
                    event.is_snapshot = number == 1
                    event.snapshot_part, event.num_snapshot_parts = number, num_parts
                message_id = f"{self._worker_id}:{self._epoch}:{event.sequence}"
                await self._publish(event, message_id)
        except BusError as error:
            logger.warning("KV events will be replaced by a snapshot: %s", error)
            self._snapshot_due = -math.inf
            return False
        if is_snapshot:
            self._last_snapshot = self._clock()
        return True

    def _event(self, changed: dict[bytes, bool]) -> kv_event_pb2.KvEvent:
        self._sequence += 1
        return kv_event_pb2.KvEvent(
            worker_id=self._worker_id,
            epoch=self._epoch,
            sequence=self._sequence,
            tier=kv_event_pb2.TIER_DEVICE,
            stored=b"".join(h for h, is_held in changed.items() if is_held),
            evicted=b"".join(h for h, is_held in changed.items() if not is_held),
            kv_identity=self._kv_identity,
        )
