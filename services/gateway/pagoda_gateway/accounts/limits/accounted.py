"""Whether the ledger has what was spent before: until then it is no seed of a budget.

Usage records wait in outboxes on this host, and in JetStream while no applier or no database takes
them. Knows no money, and of counters only that others may follow them.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from pagoda_gateway.accounts.limits.counters import LEASE_SECONDS, CountersError
from pagoda_gateway.accounts.usage.forwarder import Forwarder
from pagoda_gateway.accounts.usage.stream import until_applied
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.tasks.background_tasks import BackgroundTasks

logger = logging.getLogger(__name__)

WAIT_SECONDS = 2.0  # of a request; a few records are always on their way
# What is written after a look began is held by counters, which keep it no longer where nobody has a
# budget yet: then somebody has to look anew.
LOOK_SECONDS = LEASE_SECONDS
POLL_SECONDS = 0.1
_NATS_IS_SILENT = (
    "NATS does not say what the ledger has; if the log has 'permissions violation', NATS runs with "
    "the nats.conf of another version (docs/howto/upgrade.md)"
)


class UnaccountedError(CountersError):
    """The ledger does not have all that was used, or nobody says so."""


class Accounted:
    """Looks for this gateway: one look at a time, for all who wait."""

    def __init__(
        self,
        bus: Bus,
        forwarder: Forwarder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look for nothing yet.

        Args:
            bus: to JetStream.
            forwarder: of this host's outboxes.
            clock: of this process.
        """
        self._bus = bus
        self._forwarder = forwarder
        self._clock = clock
        self._tasks = BackgroundTasks()
        self._look: asyncio.Task[bool] | None = None
        self._generation = ""
        self._began = 0.0
        self._why_not = ""
        self._is_late = False

    async def wait(self, generation: str) -> None:
        """Return once the ledger has what was written before.

        What one look has found counts for others for some seconds: of the same counters, since what
        was written before others were lost has to be looked for anew.

        Raises:
            UnaccountedError: it has not yet; the look goes on for those who ask again.
        """
        look = self._look
        if look is None or not self._is_of_use(look, generation):
            self._generation, self._began = generation, self._clock()
            look = self._tasks.start(self.until_accounted(), name="usage is accounted")
            self._look = look
        await asyncio.wait((look,), timeout=WAIT_SECONDS)
        is_accounted = _has_succeeded(look)
        self._note(is_late=not is_accounted)
        if not is_accounted:
            raise UnaccountedError(f"usage is not accounted yet: {self._why_not}")

    async def until_accounted(self) -> bool:
        """Look anew; tell whether the ledger has what was written before, in 10 s at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                self._why_not = "records on this host wait for NATS"
                await self._forwarder.until_sent()
                while True:
                    self._why_not = _NATS_IS_SILENT
                    try:
                        await until_applied(self._bus, self._note_records)
                    except BusError as error:
                        self._why_not = f"NATS does not say whether records wait: {error}"
                    else:
                        return True
                    await asyncio.sleep(POLL_SECONDS)
        return False

    async def close(self) -> None:
        """Stop looking."""
        await self._tasks.close()

    def _is_of_use(self, look: asyncio.Task[bool], generation: str) -> bool:
        if generation != self._generation:
            return False
        is_fresh = self._clock() < self._began + LOOK_SECONDS
        return not look.done() or (is_fresh and _has_succeeded(look))

    def _note_records(self) -> None:
        self._why_not = "records in NATS wait for the ledger"

    def _note(self, *, is_late: bool) -> None:
        if is_late and not self._is_late:
            logger.warning("no budget is seeded: usage is not accounted yet: %s", self._why_not)
        elif self._is_late and not is_late:
            logger.info("usage is accounted: budgets are seeded again")
        self._is_late = is_late


def _has_succeeded(look: asyncio.Task[bool]) -> bool:
    return look.done() and not look.cancelled() and look.exception() is None and look.result()
