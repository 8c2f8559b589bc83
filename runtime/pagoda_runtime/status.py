"""Heartbeats of workers, and the directory of those that are alive."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.context import Context

from pagoda.rpc.v1.status_pb2 import Role, WorkerState, WorkerStatus
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus, Subscription

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.25
EXPIRY_SECONDS = 1.5
ROLE_NAMES = {
    Role.ROLE_PREFILL: "prefill",
    Role.ROLE_DECODE: "decode",
    Role.ROLE_KVSTORE: "kvstore",
}

Listener = Callable[[str, WorkerStatus | None], None]


class Heartbeat:
    """Publishes a worker's status at a steady pace, and GONE at the end."""

    def __init__(
        self,
        bus: Bus,
        make_status: Callable[[], WorkerStatus],
        *,
        interval_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._bus = bus
        self._make_status = make_status
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        """Publish until cancelled; then say goodbye."""
        try:
            while True:
                await self.publish_now()
                await asyncio.sleep(self._interval_seconds)
        finally:
            status = self._make_status()
            status.state = WorkerState.WORKER_STATE_GONE
            await self._publish(status)

    async def publish_now(self) -> None:
        """Publish the status at once, for instance when draining begins."""
        await self._publish(self._make_status())

    async def _publish(self, status: WorkerStatus) -> None:
        status.sent_unix_seconds = time.time()
        if not self._bus.is_connected:
            return  # an old heartbeat is worth nothing later
        with contextlib.suppress(BusError):
            subject = subjects.status(ROLE_NAMES[status.role], status.worker_id)
            await self._bus.publish(subject, status, context=Context())


@dataclass(slots=True)
class _Entry:
    status: WorkerStatus
    seen_seconds: float


class WorkerDirectory:
    """The workers heard of lately. Listeners hear every status, and None when a worker is gone.

    A status with another epoch replaces the old one; listeners then hear None for the old first.
    Only `sweep` lets a silent worker go, so that everybody learns of it at the same moment.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, expiry_seconds: float = EXPIRY_SECONDS
    ) -> None:
        self._clock = clock
        self._expiry_seconds = expiry_seconds
        self._entries: dict[str, _Entry] = {}
        self._listeners: list[Listener] = []

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(worker_id, status or None)` from now on; it must not raise or block."""
        self._listeners.append(listener)

    def on_status(self, status: WorkerStatus) -> None:
        """Take one heartbeat."""
        entry = self._entries.get(status.worker_id)
        is_other_epoch = entry is not None and entry.status.epoch != status.epoch
        if entry and is_other_epoch and status.sent_unix_seconds < entry.status.sent_unix_seconds:
            return  # of an earlier life, overtaken
        if status.state == WorkerState.WORKER_STATE_GONE:
            self._remove(status.worker_id)
            return
        if is_other_epoch:
            self._remove(status.worker_id)
        self._entries[status.worker_id] = _Entry(status, self._clock())
        self._notify(status.worker_id, status)

    def alive(self, role: "Role.ValueType | None" = None) -> list[WorkerStatus]:
        """Return the last status of each worker that is not gone, draining ones included."""
        return [
            entry.status
            for entry in self._entries.values()
            if role is None or entry.status.role == role
        ]

    def get(self, worker_id: str) -> WorkerStatus | None:
        """Return a worker's last status, None if unknown or gone."""
        entry = self._entries.get(worker_id)
        return entry.status if entry is not None else None

    def sweep(self) -> None:
        """Forget workers that were silent for too long; listeners hear of each."""
        oldest = self._clock() - self._expiry_seconds
        for worker_id in [
            key for key, entry in self._entries.items() if entry.seen_seconds < oldest
        ]:
            self._remove(worker_id)

    def forget(self, worker_id: str) -> None:
        """Let a worker go that is known to be dead; its next heartbeat brings it back."""
        self._remove(worker_id)

    def hold(self, seconds: float) -> None:
        """Add to everybody's time: for so long it was us who heard nothing."""
        for entry in self._entries.values():
            entry.seen_seconds += seconds

    async def subscribe(self, bus: Bus) -> Subscription:
        """Follow all heartbeats and sweep, until `unsubscribe` or the end of the bus."""

        async def on_message(status: WorkerStatus, _context: Context) -> None:
            self.on_status(status)

        async def keep_sweeping() -> None:
            period = self._expiry_seconds / 6
            while True:
                asleep_since = self._clock()
                await asyncio.sleep(period)
                asleep = self._clock() - asleep_since
                if not bus.is_connected:
                    self.hold(asleep)
                elif asleep > 2 * period:  # we stood still; their heartbeats wait to be read
                    self.hold(asleep - period)
                else:
                    self.sweep()

        subscription = await bus.subscribe(subjects.STATUS_ALL, WorkerStatus, on_message)
        sweeper = bus.background.start(keep_sweeping(), name="sweep worker directory")

        async def end() -> None:
            sweeper.cancel()
            await subscription.unsubscribe()

        return Subscription(end)

    def _remove(self, worker_id: str) -> None:
        if self._entries.pop(worker_id, None) is not None:
            self._notify(worker_id, None)

    def _notify(self, worker_id: str, status: WorkerStatus | None) -> None:
        for listener in self._listeners:
            listener(worker_id, status)
