"""The usage log: an open record before any work, a close record after it, each stored once.

Knows JetStream; knows no database. A record that was applied to the ledger leaves the log, so its
limit bounds what is not applied yet. An open record without its close is reconciled later.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from opentelemetry.context import Context

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway import metrics
from pagoda_gateway.errors import UnavailableError
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 36.0
_PAUSE_SECONDS = 1.0


class UsageLog:
    """Writes the two records of each request."""

    def __init__(
        self, bus: Bus, *, timeout_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bus = bus
        self._timeout_seconds = timeout_seconds
        self._clock = clock

    async def ensure_stream(
        self, max_bytes: int, on_state: Callable[[bool, str], None] | None = None
    ) -> None:
        """Create the stream: a full one refuses new records rather than dropping old ones.

        `on_state` hears when it stops taking records, with the reason, and when it does again.
        """
        await self._bus.ensure_stream(
            subjects.USAGE_STREAM,
            [subjects.USAGE_ALL],
            max_bytes=max_bytes,
            max_age_seconds=None,
            discard_old=False,
            on_state=on_state,
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
                f"the usage log takes no records, without which no work begins ({error}); "
                "try again later",
                retry_after_seconds=1,
            ) from error

    async def close(self, record: UsageClose, context: Context) -> bool:
        """Store a close record, with patience; return whether it is stored."""
        give_up_at = self._clock() + CLOSE_SECONDS
        is_warned = False
        while True:
            try:
                await self._bus.publish_durable(
                    subjects.USAGE_CLOSE,
                    UsageRecord(close=record),
                    # A line of a batch may end once more under its name: finished, then.
                    message_id=f"{record.request_id}:close:{record.outcome}",
                    timeout_seconds=self._timeout_seconds,
                    context=context,
                )
                return True
            except BusError as error:
                if not is_warned:
                    logger.warning("close record of %s: %s", record.request_id, error)
                    is_warned = True
                if self._clock() >= give_up_at:
                    break
                await asyncio.sleep(_PAUSE_SECONDS)
        metrics.USAGE_FAILURES.labels("close").inc()
        record = _without_texts(record)
        logger.error("close record of %s is lost: %s", record.request_id, record)
        return False


def _without_texts(record: UsageClose) -> UsageClose:
    """Return a record as the log may show it: without words of the prompt."""
    shown = UsageClose()
    shown.CopyFrom(record)
    shown.prefix.ClearField("text")
    shown.prefix.ClearField("earlier_text")
    return shown
