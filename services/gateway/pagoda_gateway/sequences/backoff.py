"""Pauses between tries."""

import asyncio
from collections.abc import Callable

_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 0.5


class Backoff:
    """Waits a little, longer each time, never in step with others."""

    def __init__(self, draw: Callable[[], float]) -> None:
        """Take jitter from `draw`, uniform in [0, 1)."""
        self._draw = draw

    async def pause(self, num_tries: int) -> None:
        """Wait after this many earlier tries."""
        longest = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**num_tries)
        await asyncio.sleep(longest * (0.5 + self._draw() / 2))
