"""Tells the routers which blocks this worker holds: stored and evicted hashes, in order, durably.

If an event cannot be published the next one is a snapshot, so a gap heals itself and nothing queues
up.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_runtime.errors import BusError

logger = logging.getLogger(__name__)

BATCH_SECONDS = 0.05
RETRY_SECONDS = 1.0
MAX_HASHES_PER_EVENT = 32_768  # 512 KiB

Publish = Callable[[kv_event_pb2.KvEvent, str], Awaitable[None]]
"""(event, message id for de-duplication) -> when it is stored."""


class KvEventPublisher:
    """Collects changes for 50 ms, then publishes them; starts with a snapshot.

    Args:
        publish: stores one event durably; raises BusError if it could not.
        worker_id: whose blocks.
        epoch: of this worker.
        kv_identity: 16 bytes.
    """

    def __init__(self, publish: Publish, *, worker_id: str, epoch: str, kv_identity: bytes) -> None:
        self._publish = publish
        self._worker_id = worker_id
        self._epoch = epoch
        self._kv_identity = kv_identity
        self._held: dict[bytes, None] = {}
        self._changed: dict[bytes, bool] = {}  # hash -> is it held now
        self._needs_snapshot = True
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

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            is_published = await self.publish_changes()
            if not is_published:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._has_changes.wait()
            await asyncio.sleep(BATCH_SECONDS)

    async def publish_changes(self) -> bool:
        """Publish what changed, or everything held if a snapshot is due. False: try again."""
        self._has_changes.clear()
        changed, self._changed = self._changed, {}
        is_snapshot, self._needs_snapshot = self._needs_snapshot, False
        if is_snapshot:
            changed = dict.fromkeys(self._held, True)
        try:
            for number, part in enumerate(_parts(changed)):
                await self._publish_part(part, is_snapshot=is_snapshot and number == 0)
            if is_snapshot and not changed:
                await self._publish_part({}, is_snapshot=True)
        except BusError as error:
            logger.warning("KV events will be replaced by a snapshot: %s", error)
            self._needs_snapshot = True
            return False
        return True

    async def _publish_part(self, changed: dict[bytes, bool], *, is_snapshot: bool) -> None:
        self._sequence += 1
        event = kv_event_pb2.KvEvent(
            worker_id=self._worker_id,
            epoch=self._epoch,
            sequence=self._sequence,
            tier=kv_event_pb2.TIER_DEVICE,
            stored=b"".join(h for h, is_held in changed.items() if is_held),
            evicted=b"".join(h for h, is_held in changed.items() if not is_held),
            is_snapshot=is_snapshot,
            kv_identity=self._kv_identity,
        )
        await self._publish(event, f"{self._worker_id}:{self._epoch}:{self._sequence}")


def _parts(changed: dict[bytes, bool]) -> Iterable[dict[bytes, bool]]:
    items = iter(changed.items())
    while part := dict(itertools.islice(items, MAX_HASHES_PER_EVENT)):
        yield part
