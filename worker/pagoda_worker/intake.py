"""Whether a worker takes a sequence, decided at once: the engine hears of it only afterwards."""

import asyncio
import logging
from dataclasses import dataclass

from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import EngineError, KvSource, check_request
from pagoda_worker import engine_messages
from pagoda_worker.errors import EngineLoopError, RequestFormatError
from pagoda_worker.sequences import LiveSequence, sequence_id_of
from pagoda_worker.worker import Worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a sequence was not taken."""

    status: "generate_pb2.AdmitStatus.ValueType"
    message: str


def admit(
    worker: Worker,
    message: generate_pb2.GenerateRequest,
    context: Context,
    *,
    is_import: bool,
    prefill_only: bool,
) -> LiveSequence | Refusal | None:
    """Take a sequence in. None: this very attempt is here already, so there is nothing to do.

    Earlier attempts of the sequence are ended: the gateway has moved on.
    """
    if worker.is_draining:
        return Refusal(
            generate_pb2.ADMIT_STATUS_DRAINING, f"worker {worker.identity.worker_id} is stopping"
        )
    sequence_id = sequence_id_of(message.request_id, message.sequence_index, message.attempt)
    if worker.sequences.get(sequence_id) is not None:
        return None
    others = worker.sequences.attempts(message.request_id, [message.sequence_index])
    if any(other.attempt > message.attempt and not other.is_ending for other in others):
        return _invalid(f"attempt {message.attempt} of {message.request_id} has been superseded")
    num_waiting = worker.sequences.num_waiting
    if num_waiting >= worker.settings.max_num_waiting:
        return Refusal(
            generate_pb2.ADMIT_STATUS_OVERLOADED,
            f"{num_waiting} sequences wait, max_num_waiting is {worker.settings.max_num_waiting}",
        )
    now = worker.clock()
    if message.deadline_unix_seconds and now >= message.deadline_unix_seconds:
        return _invalid(f"its deadline passed {now - message.deadline_unix_seconds:.3f} s ago")
    try:
        request = engine_messages.sequence_request(
            message,
            sequence_id=sequence_id,
            block_size=worker.model.block_size,
            kv_source=KvSource.IMPORT if is_import else KvSource.COMPUTE,
            prefill_only=prefill_only,
        )
        check_request(
            request,
            worker.model.config,
            max_model_len=worker.model.max_model_len,
            vocab_size=worker.model.vocab_size,
        )
    except (RequestFormatError, EngineError) as error:
        return _invalid(str(error))
    for other in others:
        worker.handler.end(other, f"superseded by attempt {message.attempt}")
    sequence = LiveSequence(
        sequence_id=sequence_id,
        request_id=message.request_id,
        sequence_index=message.sequence_index,
        attempt=message.attempt,
        gateway_id=message.gateway_id,
        context=context,
        deadline=message.deadline_unix_seconds or float("inf"),
        request=request,
        plan_prefill_worker_id=message.plan.prefill_worker_id,
        plan_num_fetch_blocks=min(message.plan.num_fetch_blocks, len(request.block_hashes)),
    )
    sequence.stages.accepted = now
    try:
        added = worker.loop.call(lambda engine: engine.add(request))
    except EngineLoopError as error:
        return Refusal(generate_pb2.ADMIT_STATUS_OVERLOADED, str(error))
    worker.sequences.add(sequence)
    worker.parents.add_chain(request.cache_root, request.block_hashes)
    added.add_done_callback(lambda future: _on_added(worker, sequence, future))
    return sequence


def _on_added(worker: Worker, sequence: LiveSequence, added: "asyncio.Future[None]") -> None:
    if added.cancelled() or (error := added.exception()) is None:
        return
    logger.error("the engine did not take %s: %s", sequence.sequence_id, error)
    worker.handler.fail(sequence, str(error))
    worker.frames.flush()


def _invalid(message: str) -> Refusal:
    return Refusal(generate_pb2.ADMIT_STATUS_INVALID, message)
