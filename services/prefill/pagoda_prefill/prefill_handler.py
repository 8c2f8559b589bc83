"""What a prefill worker does with its sequences: compute, publish the first token, push the blocks.

The engine holds a sequence's blocks until its push has ended, however it ended: one task per
sequence sends them and lets go of them in its last line.
"""

import asyncio
import logging

from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2, status_pb2
from pagoda_engine import (
    ComputedBlocks,
    ComputedLayers,
    FinishReason,
    KvSource,
    SequenceOutput,
)
from pagoda_prefill.exported_layers import ExportedLayers
from pagoda_prefill.prefill_sequence import PrefillSequence
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.telemetry.tracing import attached
from pagoda_worker import engine_messages
from pagoda_worker.errors import PushError
from pagoda_worker.intake import Refusal
from pagoda_worker.kv_transfer.base import KvProducer, KvPush, LeaseTarget, PushTrailer
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda_worker.role_handler import RoleHandler
from pagoda_worker.worker import DEADLINE_PASSED, Worker

logger = logging.getLogger(__name__)

MAX_PUSH_SECONDS = 600.0
RELEASE_SECONDS = 1.0


class PrefillHandler(RoleHandler[PrefillSequence]):
    """The prefill role."""

    def __init__(self, worker: Worker[PrefillSequence], producer: KvProducer) -> None:
        super().__init__(worker)
        self._producer = producer
        self._epochs: dict[str, str] = {}  # of the consumers alive

    async def on_prefill(
        self, message: generate_pb2.PrefillRequest, context: Context
    ) -> generate_pb2.PrefillResponse:
        """Take a prompt in, or say why not."""
        generate, lease = message.generate, message.lease
        if lease.worker_id and not subjects.is_plain(lease.worker_id):
            text = f"lease.worker_id is {lease.worker_id[:80]!r}, must be a plain id"
            return generate_pb2.PrefillResponse(
                status=generate_pb2.ADMIT_STATUS_INVALID, message=text
            )
        can_fetch = self.worker.tiers.can_fetch and generate.plan.num_fetch_blocks > 0
        admitted = await self.admit(
            generate,
            context,
            kv_source=KvSource.IMPORT if can_fetch else KvSource.COMPUTE,
            prefill_only=True,
            first_export_block=message.first_block,
        )
        response = generate_pb2.PrefillResponse(
            status=generate_pb2.ADMIT_STATUS_ACCEPTED, epoch=self.worker.identity.epoch
        )
        if isinstance(admitted, Refusal):
            response.status = admitted.status
            response.message = admitted.message
        elif admitted is not None:
            admitted.lease_id, admitted.lease_epoch = lease.lease_id, lease.epoch
            admitted.first_block = message.first_block
            target = LeaseTarget(lease.lease_id, lease.epoch, lease.endpoint, lease.worker_id)
            admitted.task = self.worker.tasks.start(
                self._export(admitted, target),
                name=f"export {admitted.sequence_id}",
            )
            admitted.task.add_done_callback(lambda _: self._forget(admitted))
        return response

    def on_worker(self, worker_id: str, status: status_pb2.WorkerStatus | None) -> None:
        """A worker was heard of (status) or lost (None): its leases are void then."""
        if status is not None:
            if status.role == status_pb2.ROLE_DECODE:
                self._epochs[worker_id] = status.epoch
                self._producer.hear_of(status.epoch, status.host_id)
            return
        epoch = self._epochs.pop(worker_id, None)
        if epoch is None:
            return
        self._producer.lose(epoch)
        for sequence in self.worker.sequences:
            if sequence.lease_epoch == epoch:
                self.end(sequence, f"its consumer {worker_id} is gone")

    def start_import(self, sequence: PrefillSequence, blocks: ReservedBlocks) -> None:
        """Fetch the KV of reserved blocks from the kvstore, beside the task that exports."""
        self.worker.tasks.start(self._fetch(sequence, blocks), name=f"fetch {sequence.sequence_id}")

    def on_layers(self, layers: tuple[ComputedLayers, ...]) -> None:
        """Hand finished layers of blocks to their sequences' tasks."""
        for computed in layers:
            sequence = self.worker.sequences.get(computed.sequence_id)
            if sequence is not None:
                sequence.events.put_nowait(computed)

    def on_computed(self, sequence: PrefillSequence, computed: ComputedBlocks) -> None:
        """Hand finished blocks to the sequence's task."""
        sequence.events.put_nowait(computed)

    def on_output(self, sequence: PrefillSequence, output: SequenceOutput) -> None:
        """Publish the first token at once; the transfer goes on."""
        if output.token_ids and not sequence.is_ending:
            sequence.num_output_tokens += len(output.token_ids)
            sequence.next_index = output.first_index + len(output.token_ids)
            reason = output.finish_reason
            sequence.finish_reason = "" if reason is None else reason.value
            sequence.take_limits(output)
            sequence.stages.first_token = self.worker.clock()
            frame = engine_messages.frame(sequence, output)
            frame.cached.CopyFrom(engine_messages.cached_message(sequence.cached))
            frame.stages.CopyFrom(engine_messages.prefill_stages(sequence.stages))
            self.worker.frames.add(sequence.gateway_id, frame)
            self.worker.stages.record_prefill(sequence, lease_id=sequence.lease_id)
        sequence.events.put_nowait(output)

    def end(self, sequence: PrefillSequence, error: str) -> None:
        """End a sequence; its task lets go of its blocks."""
        if sequence.is_ending:
            return
        sequence.is_ending = True
        sequence.end_error = error
        if sequence.blocks is not None:
            sequence.blocks.close()
        if sequence.task is not None:
            sequence.task.cancel()

    def fail(self, sequence: PrefillSequence, error: str) -> None:
        """The engine does not have it (any more): its consumer computes it."""
        self.end(sequence, error)

    async def _fetch(self, sequence: PrefillSequence, blocks: ReservedBlocks) -> None:
        try:
            num_valid_tokens = await self.worker.tiers.fetch_planned(sequence, blocks)
        except Exception:  # whatever went wrong, the sequence must not wait for ever
            logger.exception("%s: fetching failed", sequence.sequence_id)
            num_valid_tokens = blocks.close() * self.worker.model.block_size
            sequence.stages.fetched = self.worker.clock()
        if not sequence.is_ending:
            self.worker.post_import_finished(sequence, num_computed_tokens=num_valid_tokens)

    async def _export(self, sequence: PrefillSequence, target: LeaseTarget) -> None:
        """Push a sequence's blocks as they are computed, then its result."""
        timeout = min(sequence.deadline - self.worker.monotonic(), MAX_PUSH_SECONDS)
        reason = "failed"
        with attached(sequence.context):
            push = self._producer.push(target, timeout_seconds=max(timeout, 0.001))
            try:
                reason = await self._push_all(sequence, push)
            except PushError as error:
                reason = "refused"
                if sequence.is_overdue(self.worker.monotonic()):  # so the push had to end
                    reason = DEADLINE_PASSED
                    logger.info("%s: %s", sequence.sequence_id, reason)
                else:
                    logger.warning("%s: %s", sequence.sequence_id, error)
            except asyncio.CancelledError:
                logger.info("%s: %s", sequence.sequence_id, sequence.end_error)
                reason = sequence.end_error or "stopping"
                raise
            except Exception:
                logger.exception("%s: its blocks could not be pushed", sequence.sequence_id)
            finally:
                await self._close(push, target, reason)

    async def _push_all(self, sequence: PrefillSequence, push: KvPush) -> str:
        """Returns an empty reason when the consumer has everything, else why it has not."""
        exported = ExportedLayers(
            push,
            self.worker.kv_cache.num_layers,
            sequence.first_block,
            self.worker.kv_cache.layout.first_part,
        )
        while True:
            event = await sequence.events.get()
            if isinstance(event, ComputedLayers):
                await exported.send_layers(event)
            elif isinstance(event, ComputedBlocks):
                await exported.send_rest(event)
            elif not event.token_ids:
                return event.error or "aborted"
            else:
                await self._finish(sequence, push, event)
                return ""

    async def _finish(
        self, sequence: PrefillSequence, push: KvPush, output: SequenceOutput
    ) -> None:
        summary = await push.finish(
            PushTrailer(
                num_computed_tokens=sequence.num_known_tokens,
                first_token_id=output.token_ids[0],
                is_finished=output.finish_reason is not None,
                finish_reason=engine_messages.finish_reason_message(output.finish_reason),
            )
        )
        self.worker.speed.transfer.add(summary.num_bytes, summary.seconds)
        self.worker.metrics.transfer_bytes.labels("sent").inc(summary.num_bytes)
        if summary.bad_blocks:
            self.worker.metrics.bad_digests.labels("transfer").inc(len(summary.bad_blocks))
            logger.warning(
                "%s: blocks %s arrived damaged", sequence.sequence_id, summary.bad_blocks
            )

    async def _close(self, push: KvPush, target: LeaseTarget, reason: str) -> None:
        await push.close()
        ended = FinishReason.ABORT.value if reason else "prefill"
        self.worker.metrics.sequences_ended.labels(ended).inc()
        if reason:
            await self._release(target, reason)

    async def _release(self, target: LeaseTarget, reason: str) -> None:
        """Tell the consumer that nothing will come. Never raises: the lease expires by itself."""
        message = generate_pb2.LeaseRelease(
            lease_id=target.lease_id, epoch=target.epoch, reason=reason
        )
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self.worker.bus.publish(subjects.release(target.worker_id), message)
        except (BusError, TimeoutError) as error:
            logger.info("lease %s could not be given up: %s", target.lease_id, error)

    def _forget(self, sequence: PrefillSequence) -> None:
        """The task has ended (perhaps before it began): nobody reads the blocks now."""
        if not sequence.stages.first_token:
            sequence.stages.cut_short(self.worker.clock())
            self.worker.stages.record_prefill(
                sequence, lease_id=sequence.lease_id, is_cut_short=True
            )
        # Frees in any state; a finished one was only held.
        self.worker.end_and_record(sequence, sequence.finish_reason)
        self.worker.sequences.remove(sequence)
