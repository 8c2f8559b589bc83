"""Has a prompt prefilled by another worker: lease, request, and what becomes of them."""

import asyncio
import logging
import secrets
from collections.abc import Callable

from pagoda.rpc.v1 import generate_pb2
from pagoda_decode.decode_sequence import DecodeSequence
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_worker.kv_transfer.leases import Lease, LeaseOutcome, LeaseTable, Settlement
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda_worker.telemetry.metrics import WorkerMetrics
from pagoda_worker.telemetry.spans import StageRecorder

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
CANCEL_SECONDS = 1.0


class RemotePrefill:
    """The consumer's side of one sequence's prefill elsewhere."""

    def __init__(
        self,
        leases: LeaseTable,
        *,
        bus: Bus,
        tasks: BackgroundTasks,
        metrics: WorkerMetrics,
        stages: StageRecorder,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        worker_id: str,
    ) -> None:
        self._leases = leases
        self._worker_id = worker_id
        self._bus = bus
        self._tasks = tasks
        self._metrics = metrics
        self._stages = stages
        self._clock = clock
        self._monotonic = monotonic

    async def run(
        self, sequence: DecodeSequence, blocks: ReservedBlocks, endpoint: str
    ) -> Settlement:
        """Return what became of the prefill. The blocks are fenced then, however it ended."""
        message, sequence.message = sequence.message, None
        assert message is not None
        lease = self._leases.open(
            secrets.token_hex(12),
            sequence_id=sequence.sequence_id,
            producer_id=sequence.prefill_worker_id,
            blocks=blocks,
        )
        sequence.lease = lease
        try:
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(self._request(sequence, lease, message, endpoint))
                settlement = await asyncio.shield(lease.settled)
                asking.cancel()  # the producer may have gone without an answer
        except BaseException:
            self._leases.settle(lease, LeaseOutcome.CANCELLED)
            if lease.settled.result().outcome is LeaseOutcome.CANCELLED:
                self._tell_producer(sequence)
            raise
        finally:
            self._note(sequence, lease)
        if settlement.outcome in (LeaseOutcome.EXPIRED, LeaseOutcome.CANCELLED):
            self._tell_producer(sequence)
        return settlement

    async def _request(
        self,
        sequence: DecodeSequence,
        lease: Lease,
        message: generate_pb2.GenerateRequest,
        endpoint: str,
    ) -> None:
        remaining_seconds = sequence.deadline - self._monotonic()
        if message.HasField("remaining_seconds"):
            message.remaining_seconds = remaining_seconds
        request = generate_pb2.PrefillRequest(
            generate=message,
            lease=generate_pb2.Lease(
                lease_id=lease.lease_id,
                epoch=self._leases.epoch,
                endpoint=endpoint,
                worker_id=self._worker_id,
            ),
            first_block=lease.blocks.first_block,
        )
        try:
            response = await self._bus.request(
                subjects.prefill(sequence.prefill_worker_id),
                request,
                generate_pb2.PrefillResponse,
                timeout_seconds=min(REQUEST_SECONDS, max(remaining_seconds, 0.001)),
                context=sequence.context,
            )
        except BusError as error:
            self._leases.settle(lease, LeaseOutcome.REFUSED, reason=str(error))
            return
        if response.status != generate_pb2.ADMIT_STATUS_ACCEPTED:
            name = generate_pb2.AdmitStatus.Name(response.status)
            self._leases.settle(
                lease, LeaseOutcome.REFUSED, reason=f"{name} {response.message}".strip()
            )

    def _note(self, sequence: DecodeSequence, lease: Lease) -> None:
        """Record the transfer, as far as it came."""
        outcome = lease.settled.result().outcome.value if lease.settled.done() else "unsettled"
        if outcome != LeaseOutcome.RECEIVED.value and sequence.is_overdue(self._monotonic()):
            outcome = LeaseOutcome.CANCELLED.value  # the deadline broke it, not the producer
        self._metrics.leases_settled.labels(outcome).inc()
        self._metrics.transfer_bytes.labels("received").inc(lease.num_received_bytes)
        if not lease.started_unix_seconds:
            return
        sequence.stages.transfer_started = lease.started_unix_seconds
        sequence.stages.transferred = self._clock()
        self._stages.record_transfer(
            sequence,
            {
                "pagoda.lease_id": lease.lease_id,
                "pagoda.prefill_worker_id": lease.producer_id,
                "pagoda.blocks": lease.blocks.num_complete,
                "pagoda.bytes": lease.num_received_bytes,
                "pagoda.bad_blocks": len(lease.bad_blocks),
                "pagoda.transport": lease.transport,
                "pagoda.outcome": outcome,
            },
        )

    def _tell_producer(self, sequence: DecodeSequence) -> None:
        """Let the prefill worker stop; it would find out by itself when it pushes."""
        request = generate_pb2.CancelRequest(
            request_id=sequence.request_id,
            sequence_indices=[sequence.sequence_index],
            attempt=sequence.attempt,
            reason=sequence.end_error or "lease expired",
        )
        self._tasks.start(
            self._publish_cancel(sequence, request), name=f"cancel {sequence.sequence_id}"
        )

    async def _publish_cancel(
        self, sequence: DecodeSequence, request: generate_pb2.CancelRequest
    ) -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._bus.publish(
                    subjects.cancel(sequence.prefill_worker_id),
                    request,
                    context=sequence.context,
                )
        except (BusError, TimeoutError) as error:
            logger.info("%s could not be cancelled: %s", sequence.sequence_id, error)
