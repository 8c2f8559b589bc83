"""The usage log: an open record before any work, a close record after it, each stored once.

Stored is what this host's outbox has; from there it finds its way to the ledger. An open record
whose close never comes is reconciled once its gateway is gone.
"""

import asyncio
import logging
import time

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway import metrics
from pagoda_gateway.accounts.usage.outbox import Outbox, OutboxError
from pagoda_gateway.errors import UnavailableError

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 1.0


class UsageLog:
    """Writes the two records of each request."""

    def __init__(self, outbox: Outbox, *, timeout_seconds: float) -> None:
        self._outbox = outbox
        self._timeout_seconds = timeout_seconds

    async def open(self, record: UsageOpen) -> None:
        """Store an open record.

        Raises:
            UnavailableError: it is not stored, so the work must not begin.
        """
        stored: asyncio.Future[None] | None = None
        try:
            stored = self._outbox.append(UsageRecord(open=record).SerializeToString())
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.shield(stored)
        except (OutboxError, TimeoutError) as error:
            metrics.USAGE_FAILURES.labels("open").inc()
            reason = str(error) or f"the disk takes longer than {self._timeout_seconds:g} s"
            if stored is not None and not stored.done():
                stored.add_done_callback(lambda done: self._close_late(done, record.request_id))
            raise UnavailableError(
                f"the usage log takes no records, without which no work begins: {reason}; "
                "try again later",
                retry_after_seconds=1,
            ) from error

    async def close(self, record: UsageClose) -> None:
        """Store a close record; return when it is stored, or when that takes too long.

        Then it waits in this process for the disk. If the process dies before, workers' records
        close the request.
        """
        stored = self._outbox.append(UsageRecord(close=record).SerializeToString(), is_kept=True)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.shield(stored)
        except TimeoutError:
            metrics.USAGE_FAILURES.labels("close").inc()
            logger.warning("the close record of %s waits for the disk", record.request_id)

    def _close_late(self, stored: "asyncio.Future[None]", request_id: str) -> None:
        """End what was refused for want of time, if it is stored after all."""
        if not stored.cancelled() and stored.exception() is None:
            close = UsageClose(
                request_id=request_id, outcome="failed", closed_unix_seconds=time.time()
            )
            self._outbox.append(UsageRecord(close=close).SerializeToString(), is_kept=True)
