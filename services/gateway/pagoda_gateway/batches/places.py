"""How many lines run at once at this replica, whatever their batch: few enough for the others.

Knows no request: whoever makes it says how much room there is.
"""

import asyncio
from collections.abc import Callable

HOLD_SECONDS = 0.1  # how often a line looks whether it may begin


class Places:
    """Places for lines; batches that want one take turns."""

    def __init__(self, num_places: int, room: Callable[[int], int]) -> None:
        """Start with all free.

        Args:
            num_places: the most.
            room: how many of so many may be taken now.
        """
        self.num_places = num_places
        self.num_taken = 0
        self._room = room
        self._queue = asyncio.Semaphore(num_places)  # first come, first served

    async def take(self) -> None:
        """Wait for a place and for room to use it; `free` gives it back."""
        await self._queue.acquire()
        try:
            while self.num_taken >= self._room(self.num_places):  # noqa: ASYNC110  (nobody's event)
                await asyncio.sleep(HOLD_SECONDS)
        except BaseException:
            self._queue.release()
            raise
        self.num_taken += 1

    def free(self) -> None:
        """Give one back that was taken."""
        self.num_taken -= 1
        self._queue.release()


class Place:
    """One line's place: not its own while the line waits to be asked again."""

    def __init__(self, places: Places) -> None:
        """Have none yet."""
        self._places = places
        self._is_taken = False

    async def take(self) -> None:
        """Wait for one; see `Places.take`."""
        await self._places.take()
        self._is_taken = True

    def free(self) -> None:
        """Give it back if it is taken."""
        if self._is_taken:
            self._is_taken = False
            self._places.free()
