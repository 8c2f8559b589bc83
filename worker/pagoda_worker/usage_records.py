"""What sequences published and computed here, on its way to the ledger.

A record at each one's end, and while it runs one each second in which it published something: so
that a worker killed together with its gateway leaves all but its last second to bill.

Knows the bus by a function. Knows nothing of money.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageRecord
from pagoda_engine import SequenceOutput
from pagoda_runtime.errors import BusError
from pagoda_runtime.tasks.retry import retry_delay
from pagoda_runtime.tasks.ticks import next_tick
from pagoda_worker.engine_messages import cached_message
from pagoda_worker.heartbeat.status import WorkerIdentity
from pagoda_worker.sequences import LiveSequence

logger = logging.getLogger(__name__)

BATCH_SECONDS = 0.25
RETRY_SECONDS = 1.0
PROGRESS_SECONDS = 1.0
MAX_RECORDS = 512  # of one message, of some 150 bytes each
MAX_QUEUED = 65_536

Publish = Callable[[UsageRecord, str], Awaitable[None]]
"""(message, id for de-duplication) -> when it is stored."""


class UsageRecorder:
    """Collects records for a quarter of a second, then publishes them, until they are stored.

    A sequence has one record: what is said at its end takes the place of what was said before.

    Args:
        publish: stores a message durably; raises BusError if it could not.
        identity: of this worker.
        on_dropped: called with the number of records that found no room.
        clock: Unix seconds.
        max_queued: records that wait while NATS takes none.
    """

    def __init__(
        self,
        publish: Publish,
        identity: WorkerIdentity,
        *,
        on_dropped: Callable[[int], None],
        clock: Callable[[], float],
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._publish = publish
        self._identity = identity
        self._on_dropped = on_dropped
        self._clock = clock
        self._max_queued = max_queued
        self._queue: deque[SequenceUsage] = deque()
        self._has_records = asyncio.Event()
        self._numbers = itertools.count(1)
        self._message_numbers = itertools.count(1)
        self._num_awaited = 0
        self._is_done = asyncio.Event()
        self._is_done.set()

    def add(self, sequence: LiveSequence, finish_reason: str) -> None:
        """Record a sequence that has ended here; no reason: another worker goes on with it."""
        if len(self._queue) >= self._max_queued:
            self._on_dropped(1)
            return
        record = self._record(sequence)
        record.ended_unix_seconds = self._clock()
        record.finish_reason = finish_reason
        self._put(record)

    async def report_progress(self, sequences: Iterable[LiveSequence]) -> None:
        """Record each second how far sequences are, until cancelled."""
        while True:
            await next_tick(PROGRESS_SECONDS)
            self.add_progress(sequences)

    def add_progress(self, sequences: Iterable[LiveSequence]) -> None:
        """Record how far those are that have published something since they last said so.

        While many records wait nothing is added: it would be old when it is stored.
        """
        if len(self._queue) >= MAX_RECORDS:
            return
        for sequence in sequences:
            has_grown = sequence.num_output_tokens > sequence.num_recorded_tokens
            if has_grown and not sequence.is_ending and len(self._queue) < self._max_queued:
                self._put(self._record(sequence))
                sequence.num_recorded_tokens = sequence.num_output_tokens

    def _record(self, sequence: LiveSequence) -> SequenceUsage:
        """Return how far a sequence is; it has not ended."""
        if not sequence.record_id:
            sequence.record_id = f"{self._identity.epoch}-{next(self._numbers)}"
        record = SequenceUsage(
            record_id=sequence.record_id,
            request_id=sequence.request_id,
            sequence_index=sequence.sequence_index,
            attempt=sequence.attempt,
            worker_id=self._identity.worker_id,
            role=self._identity.role,
            first_index=sequence.next_index - sequence.num_output_tokens,
            num_published_tokens=sequence.num_output_tokens,
            num_computed_prompt_tokens=sequence.num_prefilled_tokens,
            compute_ns=sequence.compute_ns,
        )
        if sequence.num_prefilled_tokens:
            record.cached.CopyFrom(cached_message(sequence.cached))
        return record

    def _put(self, record: SequenceUsage) -> None:
        self._queue.append(record)
        self._has_records.set()
        self._is_done.clear()

    def add_when(
        self,
        aborted: "asyncio.Future[SequenceOutput | None]",
        sequence: LiveSequence,
        finish_reason: str,
    ) -> None:
        """Record a sequence once the engine has said what it computed, or says nothing."""

        def on_aborted(future: "asyncio.Future[SequenceOutput | None]") -> None:
            self._num_awaited -= 1
            if not future.cancelled() and future.exception() is None:
                sequence.take_work(future.result())
            self.add(sequence, finish_reason)

        self._num_awaited += 1
        self._is_done.clear()
        aborted.add_done_callback(on_aborted)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._has_records.wait()
            await asyncio.sleep(BATCH_SECONDS)
            while self._queue:
                records = list(itertools.islice(self._queue, MAX_RECORDS))
                await self._store(records)
                for _ in records:
                    self._queue.popleft()
            self._has_records.clear()
            if not self._num_awaited:
                self._is_done.set()

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until everything was stored, at most this long."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._is_done.wait()
        except TimeoutError:
            logger.warning("%d usage records were not stored in time", len(self._queue))

    async def _store(self, records: list[SequenceUsage]) -> None:
        message = UsageRecord(batch=[UsageRecord(sequence=record) for record in records])
        message_id = f"{self._identity.epoch}-usage-{next(self._message_numbers)}"
        is_warned = False
        while True:
            try:
                return await self._publish(message, message_id)
            except BusError as error:
                if not is_warned:
                    logger.warning("usage records wait: %s", error)
                    is_warned = True
                await asyncio.sleep(retry_delay(RETRY_SECONDS))
