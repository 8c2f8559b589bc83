"""When loops look again that look every so often: at the same moments as all others here.

A process that is woken costs far more than what it then looks at, above all while others compute:
its caches are cold. So what is due about now is done in one go.
"""

import asyncio
import time

SOON_SECONDS = 0.001  # an event loop's timers are no more exact than that


async def next_tick(period_seconds: float) -> None:
    """Sleep until the next multiple of a period, by this machine's monotonic clock."""
    await asyncio.sleep(seconds_to_tick(time.monotonic(), period_seconds))


def seconds_to_tick(now: float, period_seconds: float) -> float:
    """Return how long it is from `now` to a multiple of a period: a period at most, never 0."""
    seconds = period_seconds - now % period_seconds
    return seconds if seconds > SOON_SECONDS else seconds + period_seconds
