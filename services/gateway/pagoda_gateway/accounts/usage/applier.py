"""`python -m pagoda_gateway.accounts.usage.applier`: usage records from JetStream into the ledger.

A process of its own, so that gateways serve and nothing else; several share the work. Each record
counts once, however often it comes. Once in a while it closes what dead gateways left open, and
forgets what is old.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from opentelemetry.context import Context
from sqlalchemy.exc import SQLAlchemyError

from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import ReconcileRequest, ReconcileResponse, UsageApplied, UsageRecord
from pagoda_gateway.accounts.database import NOT_ANSWERING, Database, open_database, refusal
from pagoda_gateway.accounts.fitted import ContentError
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.retention import Retention
from pagoda_gateway.accounts.usage import applier_metrics
from pagoda_gateway.accounts.usage.reconcile import Reconciler
from pagoda_gateway.accounts.usage.sequence_usages import SequenceUsages
from pagoda_gateway.accounts.usage.stream import CONSUMER, ensure_usage_stream, until_applied
from pagoda_gateway.config import GatewaySettings
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import BusError, MessageContentError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.service import ServiceContext, load_or_exit, run_service
from pagoda_runtime.status import WorkerDirectory
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.tasks.retry import retry_delay

logger = logging.getLogger(__name__)

BATCH_MESSAGES = 32  # of up to some hundred records each
TRIM_SECONDS = 10.0
LOOK_SECONDS = 5.0
CAUGHT_UP_SECONDS = 20.0


class Applier:
    """Writes records; says when it cannot."""

    def __init__(self, bus: Bus, database: Database, health: Health) -> None:
        self._bus = bus
        self._health = health
        self._directory = WorkerDirectory()
        self.ledger = Ledger(database)
        self.sequences = SequenceUsages(database)
        self._reconciler = Reconciler(
            self.ledger, self.sequences, lambda name: self._directory.get(name) is not None
        )
        self._reconciling = asyncio.Lock()

    async def apply(self, messages: Sequence[UsageRecord]) -> None:
        """Write the records of some messages; raises what the database raises.

        MessageContentError, if it refuses what they say: of a message by itself all else is
        written then, record by record if need be.

        They come again then, here or at another applier, and may have been written: where the
        answer to a commit was lost, nobody knows. Each half of a row is written once, a row is
        sealed once, and a sequence's record is replaced by a later one alone.
        """
        started = time.perf_counter()
        records = list(flattened(messages))
        try:
            refused = await self._write(records, is_alone=len(messages) == 1)
        except Exception as error:
            self._note_refusal(error)
            raise
        if refused:
            raise MessageContentError(_described(refused))
        self._health.set_ready("ledger", True)
        applier_metrics.APPLY_SECONDS.observe(time.perf_counter() - started)
        num_sequences = sum(record.HasField("sequence") for record in records)
        applier_metrics.APPLIED.labels("request").inc(len(records) - num_sequences)
        applier_metrics.APPLIED.labels("sequence").inc(num_sequences)
        with contextlib.suppress(BusError):  # who misses the news looks again
            news = UsageApplied(num_records=len(records))
            await self._bus.publish(subjects.ACCOUNTS_APPLIED, news, context=Context())

    async def _write(
        self, records: Sequence[UsageRecord], *, is_alone: bool
    ) -> list[tuple[UsageRecord, ContentError]]:
        """Write records; return those that are refused for what they say, and why.

        Of one message that is every record by itself; of several, all or none.
        """
        try:
            if requests := [r for r in records if not r.HasField("sequence")]:
                await self.ledger.apply(requests)
            await self.sequences.apply(r.sequence for r in records if r.HasField("sequence"))
        except ContentError as error:
            middle = len(records) // 2 if is_alone else 0
            if not middle:
                return [(record, error) for record in records]
            return [
                *await self._write(records[:middle], is_alone=True),
                *await self._write(records[middle:], is_alone=True),
            ]
        return []

    async def reconcile(self, gone_seconds: float) -> ReconcileResponse:
        """Close what dead gateways left open, once all that is on its way now is in the ledger.

        Raises:
            TimeoutError: that takes too long.
        """
        async with self._reconciling:
            async with asyncio.timeout(CAUGHT_UP_SECONDS):
                await until_applied(self._bus)
            return await self._reconciler.run(gone_seconds)

    @contextlib.asynccontextmanager
    async def running(self, settings: GatewaySettings) -> AsyncIterator[None]:
        """Apply, trim, look and answer until the context ends.

        Raises:
            StreamError: JetStream refuses.
        """
        await ensure_usage_stream(self._bus, settings.usage_log_bytes)
        tasks = BackgroundTasks()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(tasks.close)
            for subscription in (
                await self._directory.subscribe(self._bus, Role.ROLE_GATEWAY),
                await self._bus.consume(
                    subjects.USAGE_STREAM,
                    CONSUMER,
                    UsageRecord,
                    self.apply,
                    batch=BATCH_MESSAGES,
                    trim_seconds=TRIM_SECONDS,
                ),
                await self._bus.serve(
                    subjects.LEDGER_RECONCILE,
                    ReconcileRequest,
                    self._on_reconcile,
                    queue=subjects.LEDGER_QUEUE,
                ),
            ):
                stack.push_async_callback(subscription.unsubscribe)
            tasks.start(self._watch_lag(), name="lag of the ledger")
            tasks.start(self._reconcile_forever(settings.reconcile_seconds), name="reconcile")
            tasks.start(self._retention(settings).run(), name="retention of usage")
            if not await self._is_writable():
                tasks.start(self._look_until_writable(), name="whether the ledger can be written")
            yield

    async def _is_writable(self) -> bool:
        """Find out, and say, whether the ledger takes records, before the first one comes."""
        try:
            await self.ledger.check_writable()
        except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
            self._note_refusal(error)
            return False
        self._health.set_ready("ledger", True)
        return True

    async def _look_until_writable(self) -> None:
        while True:
            await asyncio.sleep(retry_delay(LOOK_SECONDS))
            if await self._is_writable():
                return

    def _note_refusal(self, error: Exception) -> None:
        known = refusal(error) if isinstance(error, NOT_ANSWERING) else "does not take records"
        detail = f"the database {known} ({type(error).__name__}); records wait"
        self._health.set_ready("ledger", False, detail)

    def _retention(self, settings: GatewaySettings) -> Retention:
        return Retention(
            self.ledger.database,
            usage_days=settings.usage_keep_days,
            name_days=settings.request_name_keep_days,
        )

    async def _on_reconcile(
        self, request: ReconcileRequest, _context: Context
    ) -> ReconcileResponse:
        return await self.reconcile(request.gone_seconds)

    async def _watch_lag(self) -> None:
        while True:
            with contextlib.suppress(BusError):
                progress = await self._bus.consumer_progress(subjects.USAGE_STREAM, CONSUMER)
                applier_metrics.LEDGER_LAG.set(progress.num_waiting)
            await asyncio.sleep(LOOK_SECONDS)

    async def _reconcile_forever(self, gone_seconds: float) -> None:
        while True:
            await asyncio.sleep(retry_delay(min(LOOK_SECONDS, gone_seconds)))
            try:
                await self.reconcile(gone_seconds)
            except Exception as error:  # the database, or the bus, is not there: later, then
                logger.warning("not reconciled: %s", str(error) or repr(error))


def flattened(messages: Iterable[UsageRecord]) -> Iterator[UsageRecord]:
    """Yield the records of messages, which have one or several."""
    for message in messages:
        if message.WhichOneof("record"):
            yield message
        yield from message.batch


def _described(refused: Sequence[tuple[UsageRecord, ContentError]]) -> str:
    """Return in one line of the log which records were refused, and why the first was."""
    ids = [getattr(r, kind).request_id for r, _ in refused if (kind := r.WhichOneof("record"))]
    named = ", ".join(map(repr, ids[:5]))[:400]
    return f"{len(refused)} usage records, of {named}: {refused[0][1]}"


def main() -> int:
    """Load the gateway's settings and run until SIGTERM."""
    common, settings = load_or_exit(CommonSettings), load_or_exit(GatewaySettings)

    async def serve(service: ServiceContext) -> None:
        address = settings.ledger_address(common.home)
        async with (
            service.bus(service.instance_id) as bus,
            open_database(address) as database,
            Applier(bus, database, service.health).running(settings),
        ):
            logger.info("applies usage records")
            await service.stop.wait()

    return run_service(
        "applier",
        common,
        serve,
        health_host=settings.health_host,
        health_port=settings.health_port,
    )


if __name__ == "__main__":
    sys.exit(main())
