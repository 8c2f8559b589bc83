"""Heartbeats of workers, gateways and routers, and the directory of those that are alive.

Everybody hears only the roles that it must know of.
"""

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
from pagoda_runtime.tasks.ticks import next_tick

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.25
EXPIRY_SECONDS = 1.5
# A gateway's end only frees what it left behind, and a router's only says what is not ready.
SLOW_HEARTBEAT_SECONDS = 1.0
SLOW_EXPIRY_SECONDS = 5.0
SLOW_ROLES = frozenset({Role.ROLE_GATEWAY, Role.ROLE_ROUTER})
RECONNECT_GRACE_SECONDS = 3.0  # after a bus outage: others may come back later than we do
ROLE_NAMES = {
    Role.ROLE_PREFILL: "prefill",
    Role.ROLE_DECODE: "decode",
    Role.ROLE_KVSTORE: "kvstore",
    Role.ROLE_GATEWAY: "gateway",
    Role.ROLE_ROUTER: "router",
}

Listener = Callable[[str, WorkerStatus | None], None]


def slow_status(role: "Role.ValueType", process_id: str, epoch: str) -> WorkerStatus:
    """Return the heartbeat of a gateway or a router, which says only that it lives."""
    return WorkerStatus(
        worker_id=process_id, epoch=epoch, role=role, state=WorkerState.WORKER_STATE_READY
    )


class Heartbeat:
    """Publishes a process's status at a steady pace, and GONE at the end."""

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
                await next_tick(self._interval_seconds)
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
        """Take one heartbeat; one with an id that is none is nobody's."""
        if not subjects.is_plain(status.worker_id):
            return
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
        for worker_id in self._silent():
            self._remove(worker_id)

    def forget(self, worker_id: str) -> None:
        """Let a worker go that is known to be dead; its next heartbeat brings it back."""
        self._remove(worker_id)

    def hold(self, seconds: float) -> None:
        """Add to everybody's time: for so long it was us who heard nothing."""
        for entry in self._entries.values():
            entry.seen_seconds += seconds

    async def subscribe(self, bus: Bus, *roles: "Role.ValueType") -> Subscription:
        """Follow heartbeats of these roles and sweep, until `unsubscribe` or the end of the bus."""
        subscriptions = [
            await bus.listen(subjects.status_of(ROLE_NAMES[role]), WorkerStatus, self.on_status)
            for role in roles
        ]
        sweeper = bus.background.start(self._keep_sweeping(bus), name="sweep worker directory")

        async def end() -> None:
            sweeper.cancel()
            for subscription in subscriptions:
                await subscription.unsubscribe()

        return Subscription(end)

    async def _keep_sweeping(self, bus: Bus) -> None:
        period = self._expiry_seconds / 6
        grace_until, has_answered = 0.0, False
        while True:
            asleep_since = self._clock()
            await next_tick(period)
            now = self._clock()
            if not bus.is_connected:
                grace_until = now + RECONNECT_GRACE_SECONDS
            if now < grace_until:
                self.hold(now - asleep_since)
            elif now - asleep_since > 2 * period:  # we stood still; heartbeats wait to be read
                self.hold(now - asleep_since - period)
            elif not self._silent(soon=period):
                has_answered = False
            elif not await bus.answers(period):  # it is NATS that is silent
                has_answered = False
                grace_until = self._clock() + RECONNECT_GRACE_SECONDS
                self.hold(self._clock() - asleep_since)
            else:
                if has_answered:  # a period ago: by now all is here that NATS had kept back
                    self.sweep()
                has_answered = True

    def _silent(self, *, soon: float = 0.0) -> list[str]:
        """Return who has been silent for too long, or will have in `soon` seconds."""
        oldest = self._clock() - self._expiry_seconds + soon
        slow = max(0.0, SLOW_EXPIRY_SECONDS - self._expiry_seconds)
        return [
            key
            for key, entry in self._entries.items()
            if entry.seen_seconds < oldest - (slow if entry.status.role in SLOW_ROLES else 0.0)
        ]

    def _remove(self, worker_id: str) -> None:
        if self._entries.pop(worker_id, None) is not None:
            self._notify(worker_id, None)

    def _notify(self, worker_id: str, status: WorkerStatus | None) -> None:
        for listener in self._listeners:
            listener(worker_id, status)
