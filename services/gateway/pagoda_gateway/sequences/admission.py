"""How many requests are in flight, and whether new ones are let in. Draining ends here.

Slots are shared by a dynamic threshold: a tenant may hold so many times what is still free. Whoever
comes last finds some free, however many the others want; nobody's share has to be counted.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from pagoda_gateway import metrics
from pagoda_gateway.errors import OverloadedError, UnavailableError
from pagoda_gateway.sequences.generation import Generation

T = TypeVar("T")

RETRY_AFTER_SECONDS = 1.0
TIMES_LESS_BESIDE_OTHERS = 4  # requests in the background, while others run or ran lately
LATELY_SECONDS = 5.0
TIMES_FREE = 4  # alone, a tenant holds four fifths of the slots; of two, each four ninths
STOPPING_RETRY_AFTER_SECONDS = 5.0


class _Held(Generic[T]):
    """Something that begins and ends; a generator for it costs more than all of that."""

    __slots__ = ("_begin", "_end", "_of")

    def __init__(self, begin: Callable[[T], None], end: Callable[[T], None], of: T) -> None:
        self._begin, self._end, self._of = begin, end, of

    def __enter__(self) -> None:
        self._begin(self._of)

    def __exit__(self, *_: object) -> None:
        self._end(self._of)


class Admission:
    """Slots for requests; knows the generations that run."""

    def __init__(self, max_requests: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_requests = max_requests
        self._clock = clock
        self._quiet_from = 0.0  # since then nobody but the background
        self._num_requests = 0
        self._by_tenant: Counter[str] = Counter()
        self._generations: set[Generation] = set()
        self._is_stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        metrics.IN_FLIGHT.set_function(lambda: len(self._generations))

    @property
    def num_requests(self) -> int:
        """Requests in flight, accounts not yet settled included."""
        return self._num_requests

    def background_room(self, most: int) -> int:
        """Return how many of `most` requests that can wait may run now.

        Half of the slots are kept for the others. While one of those waits for its first token
        nothing is put beside it. While one runs, and shortly after, as the next one will come
        while what begins now is not over, a quarter is.
        """
        if self._is_stopping or 2 * self._num_requests >= self._max_requests:
            return 0
        others = [g for g in self._generations if _is_interactive(g)]
        if any(generation.ttft_seconds is None for generation in others):
            return 0
        is_alone = not others and self._clock() >= self._quiet_from
        return most if is_alone else max(1, most // TIMES_LESS_BESIDE_OTHERS)

    def check(self, tenant: str) -> None:
        """Refuse a request of `tenant` unless there is a slot for it now.

        Raises:
            UnavailableError: all are taken, or the process is stopping.
            OverloadedError: the tenant holds its share.
        """
        if self._is_stopping:
            raise UnavailableError(
                "this server is stopping; try again",
                retry_after_seconds=STOPPING_RETRY_AFTER_SECONDS,
            )
        if self._num_requests >= self._max_requests:
            raise UnavailableError(
                f"{self._num_requests} requests are in flight, the limit of this server is "
                f"{self._max_requests}; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        held, free = self._by_tenant[tenant], self._max_requests - self._num_requests
        if held >= TIMES_FREE * free:
            raise OverloadedError(
                f"{held} of your requests are in flight and {free} of this server's "
                f"{self._max_requests} slots are free for everybody else; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )

    def slot(self, tenant: str) -> "_Held[str]":
        """Hold one slot for `tenant`.

        Raises on entry:
            UnavailableError, OverloadedError: see `check`.
        """
        return _Held(self._take, self._free, tenant)

    def tracked(self, generation: Generation) -> "_Held[Generation]":
        """Know `generation` while it runs."""
        return _Held(self._generations.add, self._forget, generation)

    def stop(self) -> None:
        """Let nobody in any more."""
        self._is_stopping = True

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing is in flight; return whether that is so after `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        return self._idle.is_set()

    def _take(self, tenant: str) -> None:
        self.check(tenant)
        self._num_requests += 1
        self._by_tenant[tenant] += 1
        self._idle.clear()

    def _free(self, tenant: str) -> None:
        self._num_requests -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
        if self._num_requests == 0:
            self._idle.set()

    def _forget(self, generation: Generation) -> None:
        self._generations.discard(generation)
        if _is_interactive(generation):
            self._quiet_from = self._clock() + LATELY_SECONDS

    def abort(self) -> None:
        """End what still runs; each client gets an error."""
        for generation in list(self._generations):
            generation.fail(
                UnavailableError(
                    "this server stopped before the request ended; try again",
                    retry_after_seconds=RETRY_AFTER_SECONDS,
                ),
                reason="deadline",
            )


def _is_interactive(generation: Generation) -> bool:
    return generation.identity.service_tier == "default"
