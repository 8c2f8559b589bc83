"""The usage log: an open record before any token, a close record after the last, each stored once.

Stored is what this host's outbox has; from there it finds its way to the ledger. An open record
whose close never comes is reconciled once its gateway is gone.
"""

import asyncio
import logging
from collections.abc import Callable

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway import metrics
from pagoda_gateway.accounts.usage.deliveries import Deliveries, Slot
from pagoda_gateway.accounts.usage.outbox import Outbox, OutboxError
from pagoda_gateway.errors import UnavailableError

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 1.0
MAX_NAMES = 8192  # a few megabytes; the ledger has a record long before so many others


class UsageLog:
    """Writes the two records of each request."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        timeout_seconds: float,
        clock: Callable[[], float],
        deliveries: Deliveries | None = None,
    ) -> None:
        """Make one.

        Args:
            outbox: where records go.
            timeout_seconds: that the disk may take for an open record.
            clock: Unix seconds, of what it closes itself.
            deliveries: where it is noted what clients have; None: workers' records alone tell of
                what was open when this process was killed.
        """
        self._outbox = outbox
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._deliveries = deliveries
        self._named: dict[tuple[str, str], str] = {}  # the latest last

    def open(self, record: UsageOpen) -> asyncio.Future[None]:
        """Store an open record; the future is done once it is. Nobody cancels it.

        It has an UnavailableError if the record is not stored, so that nobody must get anything.
        """
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        try:
            stored = self._outbox.append(UsageRecord(open=record).SerializeToString())
        except OutboxError as error:
            _refuse(opened, str(error))
            return opened

        def on_timeout() -> None:
            if not opened.done():
                _refuse(opened, f"the disk takes longer than {self._timeout_seconds:g} s")

        def on_stored(stored: asyncio.Future[None]) -> None:
            timer.cancel()
            error = stored.exception()
            if opened.done():  # refused: the disk took too long
                if error is None:
                    self.close_failed(record.request_id)
            elif error is None:
                self._note_name(record)
                opened.set_result(None)
            else:
                _refuse(opened, str(error))

        timer = loop.call_later(self._timeout_seconds, on_timeout)
        stored.add_done_callback(on_stored)
        return opened

    def latest(self, tenant: str, client_request_id: str) -> str | None:
        """Return the id of the request that was last opened here under a client's own name.

        The ledger hears of it later, and has one of before under the same name until then.
        """
        return self._named.get((tenant, client_request_id))

    def _note_name(self, record: UsageOpen) -> None:
        if not record.client_request_id:
            return
        name = record.tenant, record.client_request_id
        self._named.pop(name, None)
        self._named[name] = record.request_id
        if len(self._named) > MAX_NAMES:
            del self._named[next(iter(self._named))]

    def delivery(self, request_id: str, sequence_index: int) -> Slot | None:
        """Return where to note what a sequence's client has; None: nowhere."""
        if self._deliveries is None:
            return None
        return self._deliveries.begin(request_id, sequence_index)

    async def close(self, record: UsageClose) -> None:
        """Store a close record; return when it is stored, or when that takes too long.

        Then it waits in this process for the disk. If the process dies before, what is noted and
        workers' records close the request.
        """
        stored = self._outbox.append(UsageRecord(close=record).SerializeToString(), is_kept=True)
        await asyncio.wait((stored,), timeout=CLOSE_SECONDS)
        if not stored.done():
            metrics.USAGE_FAILURES.labels("close").inc()
            logger.warning("the close record of %s waits for the disk", record.request_id)

    def close_failed(self, request_id: str) -> None:
        """End what was opened and will not begin; what was refused too late, for one."""
        close = UsageClose(
            request_id=request_id, outcome="failed", closed_unix_seconds=self._clock()
        )
        self._outbox.append(UsageRecord(close=close).SerializeToString(), is_kept=True)


def _refuse(opened: asyncio.Future[None], reason: str) -> None:
    metrics.USAGE_FAILURES.labels("open").inc()
    opened.set_exception(
        UnavailableError(
            f"the usage log takes no records, without which nobody is answered: {reason}; "
            "try again later",
            retry_after_seconds=1,
        )
    )
