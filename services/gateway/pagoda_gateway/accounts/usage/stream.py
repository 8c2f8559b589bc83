"""The JetStream stream that usage records wait in: gateways write it, appliers read it."""

from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus


async def ensure_usage_stream(bus: Bus, max_bytes: int) -> None:
    """Create USAGE: when it is full it refuses new records rather than dropping old ones.

    Raises:
        StreamError: see `Bus.ensure_stream`.
    """
    await bus.ensure_stream(
        subjects.USAGE_STREAM,
        [subjects.USAGE_ALL],
        max_bytes=max_bytes,
        max_age_seconds=None,
        discard_old=False,
    )
