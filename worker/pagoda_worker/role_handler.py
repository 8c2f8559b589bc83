"""What both roles do alike with their sequences: take them in, reserve for an import, cancel.

Knows the worker. Knows nothing of what sets the roles apart.
"""

import abc
import asyncio
import logging
import math

from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2, status_pb2
from pagoda_engine import KvSource, Reservation, Resumption, SequenceRequest
from pagoda_runtime.errors import GrammarError
from pagoda_runtime.messaging.request_server import read_at
from pagoda_worker.cancellations import Cancellations
from pagoda_worker.errors import EngineLoopError
from pagoda_worker.intake import Refusal, check_message, invalid
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda_worker.sequence_handler import SequenceHandler
from pagoda_worker.sequences import S, sequence_id_of
from pagoda_worker.worker import Worker

logger = logging.getLogger(__name__)

LEAST_FETCH_SECONDS = 0.1
"""For a fetch that is to be sooner than computing; it may take twice what that would, if more."""


class RoleHandler(SequenceHandler[S]):
    """A role, for sequences of its own class."""

    def __init__(self, worker: Worker[S]) -> None:
        self.worker = worker
        self._cancellations = Cancellations(worker.monotonic)

    async def on_cancel(self, message: generate_pb2.CancelRequest, context: Context) -> None:
        """End the sequences that nobody wants any more, also those that arrive after this."""
        attempt = message.attempt if message.HasField("attempt") else None
        self._cancellations.add(message.request_id, message.sequence_indices, attempt)
        for sequence in self.worker.sequences.attempts(
            message.request_id, message.sequence_indices, attempt
        ):
            self.end(sequence, f"cancelled: {message.reason}")

    def on_gateway(self, gateway_id: str, status: status_pb2.WorkerStatus | None) -> None:
        """Hear of a gateway; when it is gone nobody waits for its sequences."""
        if status is None:
            for sequence in self.worker.sequences:
                if sequence.gateway_id == gateway_id:
                    self.end(sequence, f"its gateway {gateway_id} is gone")

    def on_housekeeping(self) -> None:
        """See `SequenceHandler.on_housekeeping`; nothing unless a role has something."""

    def on_reserved(self, sequence: S, reservation: Reservation) -> None:
        """Blocks are there: get their KV from elsewhere if so planned."""
        sequence.cached.device = reservation.num_cached_tokens
        if sequence.request.kv_source is KvSource.COMPUTE:
            sequence.stages.fetch_started = sequence.stages.fetched = sequence.stages.reserved
        elif not sequence.is_ending:
            num_cached = reservation.num_cached_tokens // self.worker.model.block_size
            sequence.blocks = ReservedBlocks(
                self.worker.kv_cache,
                reservation.block_ids,
                first_block=max(num_cached, reservation.num_null_blocks),
                num_partial=reservation.num_partial_blocks,
                first_part=self.worker.kv_cache.layout.first_part,
            )
            self.start_import(sequence, sequence.blocks)

    def on_resumed(self, sequence: S, resumption: Resumption) -> None:
        """Blocks are there again: fetch what the engine does not compute."""
        lost, sequence.preempted = sequence.preempted, 0.0
        if not resumption.fetched:
            self.worker.stages.record_resumption(
                sequence, resumption, preempted=lost, resumed=self.worker.clock(), num_fetched=0
            )
        elif not sequence.is_ending:
            first_block = resumption.num_cached_tokens // self.worker.model.block_size
            blocks = ReservedBlocks(
                self.worker.kv_cache, resumption.block_ids, first_block=first_block
            )
            sequence.blocks = blocks
            sequence.task = self.worker.tasks.start(
                self._fetch_again(sequence, resumption, blocks, lost),
                name=f"resume {sequence.sequence_id}",
            )

    async def _fetch_again(
        self, sequence: S, resumption: Resumption, blocks: ReservedBlocks, lost: float
    ) -> None:
        """Fill blocks of a sequence that had some before; what does not come is computed."""
        worker = self.worker
        try:
            most = max(LEAST_FETCH_SECONDS, 2 * resumption.compute_cost)
            await worker.tiers.fetch(sequence, resumption.fetched, blocks, most_seconds=most)
        except Exception:  # whatever went wrong, the sequence must not wait for ever
            logger.exception("%s: its KV could not be fetched again", sequence.sequence_id)
        num_valid_blocks = blocks.close()
        worker.stages.record_resumption(
            sequence,
            resumption,
            preempted=lost,
            resumed=worker.clock(),
            num_fetched=num_valid_blocks - blocks.first_block,
        )
        worker.post_import_finished(
            sequence, num_computed_tokens=num_valid_blocks * worker.model.block_size
        )

    @abc.abstractmethod
    def start_import(self, sequence: S, blocks: ReservedBlocks) -> None:
        """Begin to fill reserved blocks; ends with `Worker.post_import_finished`."""

    async def admit(
        self,
        message: generate_pb2.GenerateRequest,
        context: Context,
        *,
        kv_source: KvSource,
        prefill_only: bool = False,
        first_export_block: int = 0,
    ) -> S | Refusal | None:
        """Take a sequence in. None: this very attempt is here already, so there is nothing to do.

        Earlier attempts of the sequence are ended: the gateway has moved on. What a role adds to
        the sequence it may set on return: nothing happens to a sequence before.
        """
        worker = self.worker
        token_mask = None
        if message.sampling.grammar:
            try:
                token_mask = await worker.grammars.mask(message.sampling.grammar)
            except GrammarError as error:
                return invalid(f"the grammar: {error}")
        if worker.is_draining:
            return Refusal(
                generate_pb2.ADMIT_STATUS_DRAINING,
                f"worker {worker.identity.worker_id} is stopping",
            )
        sequence_id = sequence_id_of(message.request_id, message.sequence_index, message.attempt)
        if worker.sequences.get(sequence_id) is not None:
            return None
        if self._cancellations.covers(message.request_id, message.sequence_index, message.attempt):
            return Refusal(generate_pb2.ADMIT_STATUS_CANCELLED, "it was cancelled before it came")
        if message.adapter and not worker.adapters.has(message.adapter):
            return Refusal(
                generate_pb2.ADMIT_STATUS_NOT_LOADED,
                f"worker {worker.identity.worker_id} has no adapter {message.adapter.hex()}",
            )
        others = worker.sequences.attempts(message.request_id, [message.sequence_index])
        has_deadline = message.HasField("remaining_seconds")
        request = check_message(
            message,
            worker.model,
            others,
            num_waiting=worker.sequences.num_waiting,
            num_waiting_of_tenant=worker.sequences.num_waiting_of(message.tenant),
            max_num_waiting=worker.settings.max_num_waiting,
            deadline=read_at(context) + message.remaining_seconds if has_deadline else math.inf,
            now=worker.monotonic(),
            kv_source=kv_source,
            prefill_only=prefill_only,
            first_export_block=first_export_block,
            token_mask=token_mask,
        )
        if isinstance(request, Refusal):
            return request
        for other in others:
            self.end(other, f"superseded by attempt {message.attempt}")
        return self._take_in(message, request, context)

    def _take_in(
        self,
        message: generate_pb2.GenerateRequest,
        request: SequenceRequest,
        context: Context,
    ) -> S | Refusal:
        sequence = self.worker.sequence_class(
            sequence_id=request.sequence_id,
            request_id=message.request_id,
            sequence_index=message.sequence_index,
            attempt=message.attempt,
            gateway_id=message.gateway_id,
            context=context,
            deadline=request.deadline,
            request=request,
            plan_num_fetch_blocks=min(message.plan.num_fetch_blocks, len(request.block_hashes)),
            next_index=len(message.output_token_ids),
        )
        sequence.stages.accepted = self.worker.clock()
        try:
            added = self.worker.add(sequence)
        except EngineLoopError as error:
            return Refusal(generate_pb2.ADMIT_STATUS_OVERLOADED, str(error))
        added.add_done_callback(lambda future: self._on_added(sequence, future))
        return sequence

    def _on_added(self, sequence: S, added: "asyncio.Future[None]") -> None:
        if added.cancelled() or (error := added.exception()) is None:
            return
        logger.error("the engine did not take %s: %s", sequence.sequence_id, error)
        self.fail(sequence, str(error))
        self.worker.frames.flush()
