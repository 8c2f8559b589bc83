"""Requests of a tenant that wait for room in its limits: first come, first served, and not many."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary


class WaitingLines:
    """One line for each tenant, at this gateway; only its first asks again and again."""

    def __init__(self, max_requests: int) -> None:
        """Keep at most `max_requests` of a tenant."""
        self.max_requests = max_requests
        self._num_waiting: Counter[str] = Counter()
        self._firsts: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def num_waiting(self, tenant: str) -> int:
        """Return how many requests of a tenant wait."""
        return self._num_waiting[tenant]

    def is_full(self, tenant: str) -> bool:
        """Return whether no further request of a tenant may wait."""
        return self._num_waiting[tenant] >= self.max_requests

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str, seconds: float) -> AsyncIterator[None]:
        """Wait behind those that came before; hold the first place while the block runs.

        Raises:
            TimeoutError: others were before it for so long.
        """
        first = self._firsts.setdefault(tenant, asyncio.Lock())
        self._num_waiting[tenant] += 1
        try:
            async with asyncio.timeout(seconds):
                await first.acquire()  # its waiters are woken in the order in which they came
            try:
                yield
            finally:
                first.release()
        finally:
            self._num_waiting[tenant] -= 1
            if not self._num_waiting[tenant]:
                del self._num_waiting[tenant]
