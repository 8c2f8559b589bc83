"""News of changed keys and tenants, from the gateway that changed them to all others.

The database is the truth; who misses the news learns it when what it remembers is too old.
"""

import logging
from collections.abc import Callable

from opentelemetry.context import Context

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus, Subscription

logger = logging.getLogger(__name__)

Listener = Callable[[AccountChange], None]


class AccountChanges:
    """Tells everybody, the own process at once."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listeners: list[Listener] = []

    def add_listener(self, listener: Listener) -> None:
        """Let `listener` hear of each change, this gateway's own included, once or twice."""
        self._listeners.append(listener)

    async def announce(self, change: AccountChange) -> None:
        """Tell all gateways what has changed; it is in the database by now."""
        self._tell(change)
        try:
            await self._bus.publish(subjects.ACCOUNTS_CHANGED, change)
        except BusError as error:
            logger.warning("other gateways learn late what changed (%s): %s", error, change)

    async def subscribe(self) -> Subscription:
        """Hear of the changes that other gateways make."""

        async def on_change(change: AccountChange, context: Context) -> None:
            self._tell(change)

        return await self._bus.subscribe(subjects.ACCOUNTS_CHANGED, AccountChange, on_change)

    def _tell(self, change: AccountChange) -> None:
        for listener in self._listeners:
            listener(change)
