"""What a decode worker does with its sequences, from the request to the last frame.

Every reserved block has one owner at any time: the engine's sequence. Writers from outside pass a
fence (`ReservedBlocks`), which is closed before the engine may free the blocks.
"""

import logging
import time

from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2, status_pb2
from pagoda_decode.decode_sequence import DecodeSequence
from pagoda_decode.remote_prefill import RemotePrefill
from pagoda_engine import ComputedBlocks, FinishReason, KvSource, SequenceOutput
from pagoda_worker import engine_messages
from pagoda_worker.intake import Refusal
from pagoda_worker.kv_transfer.leases import LeaseOutcome, LeaseTable, Settlement
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda_worker.role_handler import RoleHandler
from pagoda_worker.sequences import sequence_id_of
from pagoda_worker.worker import DEADLINE_PASSED, Worker

logger = logging.getLogger(__name__)


class DecodeHandler(RoleHandler[DecodeSequence]):
    """The decode role. `endpoint` must be set before the first request."""

    def __init__(self, worker: Worker[DecodeSequence], *, lease_seconds: float) -> None:
        super().__init__(worker)
        self.leases = LeaseTable(
            worker.identity.epoch, lease_seconds=lease_seconds, clock=time.monotonic
        )
        worker.metrics.num_leases.set_function(lambda: len(self.leases))
        self.endpoint = ""
        self._remote = RemotePrefill(
            self.leases,
            bus=worker.bus,
            tasks=worker.tasks,
            metrics=worker.metrics,
            stages=worker.stages,
            clock=worker.clock,
            monotonic=worker.monotonic,
            worker_id=worker.identity.worker_id,
        )

    async def on_generate(
        self, message: generate_pb2.GenerateRequest, context: Context
    ) -> generate_pb2.GenerateResponse:
        """Take a sequence in, or say why not."""
        plan = message.plan
        kv_source = KvSource.COMPUTE
        if plan.prefill_worker_id:
            kv_source = KvSource.HANDOVER
        elif self.worker.tiers.can_fetch and plan.num_fetch_blocks > 0:
            kv_source = KvSource.IMPORT
        admitted = await self.admit(message, context, kv_source=kv_source)
        response = generate_pb2.GenerateResponse(
            status=generate_pb2.ADMIT_STATUS_ACCEPTED, epoch=self.worker.identity.epoch
        )
        if isinstance(admitted, Refusal):
            response.status = admitted.status
            response.message = admitted.message
        elif admitted is not None and plan.prefill_worker_id:
            admitted.prefill_worker_id = plan.prefill_worker_id
            admitted.message = message
        return response

    async def on_probe(
        self, message: generate_pb2.ProbeRequest, context: Context
    ) -> generate_pb2.ProbeResponse:
        """Say how far sequences are of which their gateway has heard nothing."""
        response = generate_pb2.ProbeResponse()
        for asked in message.sequences:
            sequence = self.worker.sequences.get(
                sequence_id_of(asked.request_id, asked.sequence_index, asked.attempt)
            )
            response.progress.add(
                is_known=sequence is not None and not sequence.is_ending,
                next_index=0 if sequence is None else sequence.next_index,
            )
        return response

    async def on_release(self, message: generate_pb2.LeaseRelease, context: Context) -> None:
        """Compute here what its producer gave up."""
        self.leases.give_up(message.lease_id, message.epoch, message.reason)

    def on_worker(self, worker_id: str, status: status_pb2.WorkerStatus | None) -> None:
        """A worker was heard of (status) or lost (None)."""
        if status is None:
            self.leases.lose_producer(worker_id)

    def on_housekeeping(self) -> None:
        """Let leases expire."""
        self.leases.sweep()

    def start_import(self, sequence: DecodeSequence, blocks: ReservedBlocks) -> None:
        """Get the KV of reserved blocks from a prefill worker or the kvstore."""
        sequence.task = self.worker.tasks.start(
            self._import(sequence, blocks), name=f"import {sequence.sequence_id}"
        )

    def on_computed(self, sequence: DecodeSequence, computed: ComputedBlocks) -> None:
        """Decode sequences export nothing."""

    def on_output(self, sequence: DecodeSequence, output: SequenceOutput) -> None:
        """Publish tokens; at the end say how long everything took."""
        if output.prompt_logprobs:
            for frame in engine_messages.prompt_frames(sequence, output):
                self.worker.frames.add(sequence.gateway_id, frame)
            return
        stages = sequence.stages
        if sequence.is_ending and output.finish_reason is FinishReason.ABORT:
            output = output._replace(error=sequence.end_error)
        sequence.take_work(output)
        is_search = sequence.request.sampling.beam_search is not None
        if is_search and output.finish_reason is None:
            if not stages.joined:
                self._end_prompt(sequence)
            return  # it has no output before its end
        frame = engine_messages.frame(sequence, output)
        num_tokens = len(output.token_ids) + sum(len(h.token_ids) for h in output.hypotheses)
        sequence.num_output_tokens += num_tokens
        sequence.next_index = output.first_index + num_tokens
        is_end = (
            bool(output.embedding or output.hypotheses)
            or output.finish_reason is FinishReason.LENGTH
        )
        is_first = bool(output.token_ids or is_end) and not stages.joined  # or max_tokens 0, here
        if is_first:
            self._end_prompt(sequence)
        if is_first or (is_search and stages.joined):  # a search has no frame before
            frame.cached.CopyFrom(engine_messages.cached_message(sequence.cached))
            frame.stages.CopyFrom(engine_messages.prefill_stages(stages))
        if output.finish_reason is not None:
            if not stages.joined:
                self._cut_prompt_short(sequence, frame)
            stages.ended = self.worker.clock()
            is_local = sequence.is_local_prefill
            frame.stages.MergeFrom(engine_messages.decode_stages(stages, is_local_prefill=is_local))
            self._forget(sequence, output.finish_reason)
        self.worker.frames.add(sequence.gateway_id, frame)

    def _end_prompt(self, sequence: DecodeSequence) -> None:
        """Note that a prompt was computed here."""
        sequence.stages.first_token = sequence.stages.joined = self.worker.clock()
        self.worker.stages.record_prefill(sequence, fallback_reason=sequence.fallback_reason)

    def _cut_prompt_short(self, sequence: DecodeSequence, frame: generate_pb2.Frame) -> None:
        """Say what there was of a prompt whose sequence ends before it is computed."""
        sequence.stages.cut_short(self.worker.clock())
        if not sequence.prefill_worker_id or sequence.fallback_reason:  # else another one says it
            frame.stages.CopyFrom(engine_messages.prefill_stages(sequence.stages))
            self.worker.stages.record_prefill(
                sequence, fallback_reason=sequence.fallback_reason, is_cut_short=True
            )

    def end(self, sequence: DecodeSequence, error: str) -> None:
        """End a sequence: nobody writes its blocks any more, then the engine frees them."""
        if sequence.is_ending:
            return
        sequence.is_ending = True
        sequence.end_error = error
        if sequence.lease is not None:
            self.leases.settle(sequence.lease, LeaseOutcome.CANCELLED, reason=error)
        if sequence.task is not None:
            sequence.task.cancel()
        if sequence.blocks is not None:
            sequence.blocks.close()
        self.worker.post_abort(sequence)

    def fail(self, sequence: DecodeSequence, error: str) -> None:
        """The engine does not have it (any more): say so in its place."""
        self.end(sequence, error)
        output = SequenceOutput(
            sequence_id=sequence.sequence_id,
            first_index=sequence.next_index,
            token_ids=(),
            finish_reason=FinishReason.ERROR,
            error=error,
            compute_ns=sequence.compute_ns,
            num_prefilled_tokens=sequence.num_prefilled_tokens,
            num_proposed_tokens=sequence.num_proposed_tokens,
            num_accepted_tokens=sequence.num_accepted_tokens,
        )
        self.on_output(sequence, output)

    async def _import(self, sequence: DecodeSequence, blocks: ReservedBlocks) -> None:
        """Fill reserved blocks from a prefill worker or the kvstore; the rest is computed here."""
        try:
            if sequence.prefill_worker_id:
                settlement = await self._remote.run(sequence, blocks, self.endpoint)
                if sequence.is_ending or self._join(sequence, settlement):
                    return
                if sequence.is_overdue(self.worker.monotonic()):
                    self.end(sequence, DEADLINE_PASSED)
                    return
                self._fall_back(sequence, settlement)
                num_valid_tokens = self._num_valid_tokens(sequence, settlement.num_valid_blocks)
            else:
                num_valid_tokens = await self.worker.tiers.fetch_planned(sequence, blocks)
        except Exception:  # whatever went wrong, the sequence must not wait for ever
            logger.exception("%s: its KV could not be imported", sequence.sequence_id)
            if sequence.prefill_worker_id:
                sequence.fallback_reason = sequence.fallback_reason or "not imported"
            num_valid_tokens = self._num_valid_tokens(sequence, blocks.close())
            now = self.worker.clock()
            sequence.stages.fetch_started = sequence.stages.fetch_started or now
            sequence.stages.fetched = now
        self.worker.post_import_finished(sequence, num_computed_tokens=num_valid_tokens)

    def _join(self, sequence: DecodeSequence, settlement: Settlement) -> bool:
        """Let a sequence whose KV is complete run. False: it is not complete."""
        result, lease = settlement.result, sequence.lease
        num_blocks = -(-sequence.num_known_tokens // self.worker.model.block_size)
        if result is None or lease is None or settlement.num_valid_blocks < num_blocks:
            return False
        if result.num_computed_tokens != sequence.num_known_tokens:
            logger.error(
                "lease %s: the producer computed %d tokens of %d",
                lease.lease_id,
                result.num_computed_tokens,
                sequence.num_known_tokens,
            )
            return False
        if not 0 <= result.first_token_id < self.worker.model.vocab_size:
            logger.error("lease %s: %d is no token", lease.lease_id, result.first_token_id)
            return False
        sequence.stages.joined = self.worker.clock()
        self.worker.tiers.mark_known(sequence.request.block_hashes)  # the producer writes them
        if result.is_finished:  # and the producer's frame has said so, and its record does
            sequence.stages.ended = sequence.stages.joined
            self.worker.post_abort(sequence)
            sequence.next_index += 1
            reason = engine_messages.finish_reason(result.finish_reason)
            self._forget(sequence, reason, is_recorded_elsewhere=True)
        else:
            sequence.next_index += 1  # the producer has published its token
            self.worker.post_import_finished(
                sequence,
                num_computed_tokens=result.num_computed_tokens,
                first_token_id=result.first_token_id,
            )
        return True

    def _fall_back(self, sequence: DecodeSequence, settlement: Settlement) -> None:
        outcome = settlement.outcome.value
        if settlement.outcome is LeaseOutcome.RECEIVED:
            outcome = "bad blocks"
        sequence.fallback_reason = (
            f"{outcome}: {settlement.reason}" if settlement.reason else outcome
        )
        logger.warning(
            "%s: prefill on %s failed (%s); %d of its tokens are valid, the rest is computed here",
            sequence.sequence_id,
            sequence.prefill_worker_id,
            sequence.fallback_reason,
            self._num_valid_tokens(sequence, settlement.num_valid_blocks),
        )
        self.worker.metrics.local_fallbacks.labels(outcome).inc()
        sequence.stages.fetch_started = sequence.stages.fetched = self.worker.clock()

    def _num_valid_tokens(self, sequence: DecodeSequence, num_valid_blocks: int) -> int:
        return min(num_valid_blocks * self.worker.model.block_size, sequence.num_known_tokens)

    def _forget(
        self,
        sequence: DecodeSequence,
        reason: FinishReason | None,
        *,
        is_recorded_elsewhere: bool = False,
    ) -> None:
        # None: an older producer has not said it.
        name = "prefill" if reason is None else reason.value
        self.worker.stages.record_decode(
            sequence, finish_reason=name, is_local_prefill=sequence.is_local_prefill
        )
        self.worker.metrics.sequences_ended.labels(name).inc()
        self.worker.usage.add(sequence, "" if is_recorded_elsewhere else name)
        self.worker.sequences.remove(sequence)
