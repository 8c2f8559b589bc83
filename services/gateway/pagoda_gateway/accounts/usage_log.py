"""The usage log: an open record before any work, a close record after it, each stored once.

Knows JetStream; knows no database. A record that was applied to the ledger leaves the log, so its
limit bounds what is not applied yet. An open record without its close is reconciled later.
"""

import asyncio
import logging

from opentelemetry.context import Context

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway import metrics
from pagoda_gateway.errors import UnavailableError
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

logger = logging.getLogger(__name__)

MAX_STREAM_BYTES = 4 << 30
CLOSE_ATTEMPTS = 6
_PAUSE_SECONDS = 1.0


class UsageLog:
    """Writes the two records of each request."""

    def __init__(self, bus: Bus, *, timeout_seconds: float) -> None:
        self._bus = bus
        self._timeout_seconds = timeout_seconds

    async def ensure_stream(self) -> None:
        """Create the stream: a full one refuses new records rather than dropping old ones."""
        await self._bus.ensure_stream(
            subjects.USAGE_STREAM,
            [subjects.USAGE_ALL],
            max_bytes=MAX_STREAM_BYTES,
            max_age_seconds=None,
            discard_old=False,
        )

    async def open(self, record: UsageOpen, context: Context) -> None:
        """Store an open record.

        Raises:
            UnavailableError: it is not stored, so the work must not begin.
        """
        try:
            await self._bus.publish_durable(
                subjects.USAGE_OPEN,
                UsageRecord(open=record),
                message_id=f"{record.request_id}:open",
                timeout_seconds=self._timeout_seconds,
                context=context,
            )
        except BusError as error:
            metrics.USAGE_FAILURES.labels("open").inc()
            raise UnavailableError(
                f"the usage log does not answer ({error}); try again", retry_after_seconds=1
            ) from error

    async def close(self, record: UsageClose, context: Context) -> bool:
        """Store a close record, with patience; return whether it is stored."""
        for attempt in range(CLOSE_ATTEMPTS):
            try:
                await self._bus.publish_durable(
                    subjects.USAGE_CLOSE,
                    UsageRecord(close=record),
                    message_id=f"{record.request_id}:close",
                    timeout_seconds=self._timeout_seconds,
                    context=context,
                )
                return True
            except BusError as error:
                logger.warning("close record of %s: %s", record.request_id, error)
                if attempt + 1 < CLOSE_ATTEMPTS:
                    await asyncio.sleep(_PAUSE_SECONDS)
        metrics.USAGE_FAILURES.labels("close").inc()
        logger.error("close record of %s is lost: %s", record.request_id, record)
        return False
