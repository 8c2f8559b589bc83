"""A handle that ends a subscription."""

from collections.abc import Awaitable, Callable

import nats.errors


class Subscription:
    """What subscribe, serve and consume return."""

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        self._end: Callable[[], Awaitable[None]] | None = end

    async def unsubscribe(self) -> None:
        """Take no further messages; may be called twice, and after the bus closed."""
        end, self._end = self._end, None
        if end is None:
            return
        try:
            await end()
        except (
            nats.errors.ConnectionClosedError,
            nats.errors.ConnectionDrainingError,
            nats.errors.BadSubscriptionError,
        ):
            return
