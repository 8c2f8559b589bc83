"""Serves the requests of one subscription: so many at once, the newest first, no expired ones.

Owns the requests that wait. Under more load than can be served a queue in order of arrival answers
everybody just too late. Here what is served is fresh, the rest expires where it waits, and the load
is over when the load is over. Knows no message in particular and no NATS but its `Msg`.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from opentelemetry.context import Context, create_key, get_value, set_value

from pagoda_runtime.messaging.codec import kind_of, remaining_seconds_of
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.telemetry.metrics import BUS_SHED

MAX_WAITING_BYTES = 64 << 20
_READ_AT = create_key("pagoda-read-at")


def read_at(context: Context) -> float:
    """Return when the request that is handled in `context` was read, by `time.monotonic`."""
    moment = get_value(_READ_AT, context)
    return moment if isinstance(moment, float) else time.monotonic()


def with_read_at(context: Context, moment: float) -> Context:
    """Return a context in which `read_at` returns `moment`."""
    return set_value(_READ_AT, moment, context)


class RequestServer:
    """Hands requests to `answer` within bounds of number, bytes and time."""

    def __init__(
        self,
        answer: Callable[[Msg, float], Awaitable[None]],
        refuse: Callable[[Msg, str], Awaitable[None]],
        tasks: BackgroundTasks,
        *,
        max_concurrent: int,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve what `on_message` takes.

        Args:
            answer: serves one request, which was read at that time; handles its own errors.
            refuse: tells a caller, who may be gone, why its request was shed.
            tasks: owns the serving; closing it drops what waits.
            max_concurrent: requests served at once.
            max_waiting: requests that wait for one of those to end; beyond, the oldest are shed.
            clock: monotonic: what is left of a request is counted from when it is read.
        """
        self._answer, self._refuse, self._tasks = answer, refuse, tasks
        self._max_concurrent, self._max_waiting = max_concurrent, max_waiting
        self._clock = clock
        self._waiting: deque[tuple[Msg, float]] = deque()  # with when it was read
        self._num_waiting_bytes = 0
        self._num_serving = 0

    def on_message(self, message: Msg) -> None:
        """Take a request; never waits for one being served."""
        request = message, self._clock()
        if self._num_serving < self._max_concurrent:
            self._num_serving += 1
            self._tasks.start(self._serve(request), name=f"serve {message.subject}")
            return
        self._waiting.append(request)
        self._num_waiting_bytes += len(message.data)
        while self._is_over_bounds:
            oldest, _ = self._waiting.popleft()
            self._num_waiting_bytes -= len(oldest.data)
            reason = f"{self._max_waiting} newer requests are waiting"
            self._tasks.start(self._shed(oldest, "full", reason), name="shed")

    @property
    def _is_over_bounds(self) -> bool:
        is_too_large = self._num_waiting_bytes > MAX_WAITING_BYTES and len(self._waiting) > 1
        return len(self._waiting) > self._max_waiting or is_too_large

    async def _serve(self, request: tuple[Msg, float]) -> None:
        """Serve this one if it is not too late, then those that wait by then."""
        following: tuple[Msg, float] | None = request
        try:
            while following is not None:
                message, moment = following
                waited, remaining = self._clock() - moment, remaining_seconds_of(message)
                if waited <= remaining:
                    await self._answer(message, moment)
                else:
                    reason = f"it waited {waited:.3f} s here and had {remaining:.3f} s left"
                    await self._shed(message, "expired", reason)
                following = self._take_newest()
        finally:
            self._num_serving -= 1

    def _take_newest(self) -> tuple[Msg, float] | None:
        if not self._waiting:
            return None
        request = self._waiting.pop()
        self._num_waiting_bytes -= len(request[0].data)
        return request

    async def _shed(self, message: Msg, kind: str, reason: str) -> None:
        BUS_SHED.labels(kind_of(message.subject), kind).inc()
        await self._refuse(message, f"not served: {reason}")
