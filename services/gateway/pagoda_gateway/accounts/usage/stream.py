"""The JetStream stream that usage records wait in: gateways write it, appliers make and read it."""

import asyncio
from collections.abc import Callable

from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

CONSUMER = "ledger"  # of all appliers
POLL_SECONDS = 0.05


async def ensure_usage_stream(bus: Bus, max_bytes: int) -> None:
    """Create USAGE: when it is full it refuses new records rather than dropping old ones.

    Raises:
        StreamError: see `Bus.ensure_stream`.
    """
    await bus.ensure_stream(
        subjects.USAGE_STREAM,
        [subjects.USAGE_ALL],
        max_bytes=max_bytes,
        discard_old=False,
    )


async def until_applied(bus: Bus, on_waiting: Callable[[], None] = lambda: None) -> None:
    """Return once everything that is in the stream now is in the ledger.

    `on_waiting` is called when JetStream has said that some of it is not.

    Raises:
        StreamError: JetStream does not say.
    """
    last: int | None = None
    while (progress := await bus.consumer_progress(subjects.USAGE_STREAM, CONSUMER)).num_waiting:
        on_waiting()
        last = progress.last_sequence if last is None else last
        if progress.done_sequence >= last:
            return
        await asyncio.sleep(POLL_SECONDS)
