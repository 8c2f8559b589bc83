"""Places for work that takes long, at which tenants take turns. Knows no work."""

import asyncio
from collections import Counter, deque


class Turns:
    """A few places on one event loop; whoever has many requests keeps nobody else waiting for them.

    The next place is a tenant's that holds the fewest, and of these the one whose last turn ended
    first. A tenant's own requests stay in their order.
    """

    def __init__(self, num_places: int) -> None:
        """Begin with `num_places` that are free."""
        self._num_free = num_places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns

    async def acquire(self, tenant: str) -> None:
        """Wait for a place, to be given back by `release`; a wait that is cancelled holds none."""
        if self._num_free:
            self._take(tenant)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came just before
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Give back a place that `tenant` holds."""
        self._num_free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        if own := self._waiting.pop(tenant, None):
            self._waiting[tenant] = own  # behind all others
        while self._num_free and self._waiting:
            following = min(self._waiting, key=lambda waiting: self._held[waiting])
            turn = self._waiting[following].popleft()
            if not self._waiting[following]:
                del self._waiting[following]
            if not turn.done():
                self._take(following)
                turn.set_result(None)

    def _take(self, tenant: str) -> None:
        self._num_free -= 1
        self._held[tenant] += 1
