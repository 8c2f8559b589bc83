"""Serves the requests of one subscription: so many at once, the newest first, no expired ones.

Owns the requests that wait. Under more load than can be served a queue in order of arrival answers
everybody just too late. Here what is served is fresh, the rest expires where it waits, and the load
is over when the load is over. Knows no message in particular and no NATS but its `Msg`.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg

from pagoda_runtime.messaging.codec import deadline_of, kind_of
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.telemetry.metrics import BUS_SHED

MAX_WAITING_BYTES = 64 << 20


class RequestServer:
    """Hands requests to `answer` within bounds of number, bytes and time."""

    def __init__(
        self,
        answer: Callable[[Msg], Awaitable[None]],
        refuse: Callable[[Msg, str], Awaitable[None]],
        tasks: BackgroundTasks,
        *,
        max_concurrent: int,
        max_waiting: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Serve what `on_message` takes.

        Args:
            answer: serves one request; handles its own errors.
            refuse: tells a caller, who may be gone, why its request was shed.
            tasks: owns the serving; closing it drops what waits.
            max_concurrent: requests served at once.
            max_waiting: requests that wait for one of those to end; beyond, the oldest are shed.
            clock: Unix seconds, the clock of the deadlines.
        """
        self._answer, self._refuse, self._tasks = answer, refuse, tasks
        self._max_concurrent, self._max_waiting = max_concurrent, max_waiting
        self._clock = clock
        self._waiting: deque[Msg] = deque()
        self._num_waiting_bytes = 0
        self._num_serving = 0

    def on_message(self, message: Msg) -> None:
        """Take a request; never waits for one being served."""
        if self._num_serving < self._max_concurrent:
            self._num_serving += 1
            self._tasks.start(self._serve(message), name=f"serve {message.subject}")
            return
        self._waiting.append(message)
        self._num_waiting_bytes += len(message.data)
        while self._is_over_bounds:
            oldest = self._waiting.popleft()
            self._num_waiting_bytes -= len(oldest.data)
            reason = f"{self._max_waiting} newer requests are waiting"
            self._tasks.start(self._shed(oldest, "full", reason), name="shed")

    @property
    def _is_over_bounds(self) -> bool:
        is_too_large = self._num_waiting_bytes > MAX_WAITING_BYTES and len(self._waiting) > 1
        return len(self._waiting) > self._max_waiting or is_too_large

    async def _serve(self, message: Msg) -> None:
        """Serve this one if it is not too late, then those that wait by then."""
        following: Msg | None = message
        try:
            while following is not None:
                deadline = deadline_of(following)
                late_seconds = 0.0 if deadline is None else self._clock() - deadline
                if late_seconds <= 0:
                    await self._answer(following)
                else:
                    reason = f"its deadline was {late_seconds:.3f} s ago by this host's clock"
                    await self._shed(following, "expired", reason)
                following = self._take_newest()
        finally:
            self._num_serving -= 1

    def _take_newest(self) -> Msg | None:
        if not self._waiting:
            return None
        message = self._waiting.pop()
        self._num_waiting_bytes -= len(message.data)
        return message

    async def _shed(self, message: Msg, kind: str, reason: str) -> None:
        BUS_SHED.labels(kind_of(message.subject), kind).inc()
        await self._refuse(message, f"not served: {reason}")
