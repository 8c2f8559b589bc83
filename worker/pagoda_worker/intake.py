"""Whether a worker takes a sequence, decided at once: the engine hears of it only afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import EngineError, KvSource, SequenceRequest, TokenMask, check_request
from pagoda_runtime.messaging import subjects
from pagoda_worker import engine_messages
from pagoda_worker.errors import RequestFormatError
from pagoda_worker.sequences import LiveSequence, sequence_id_of
from pagoda_worker.served_model import ServedModel

TIMES_FREE = 4
"""A tenant may have so many times the free places in the queue: alone four fifths, of two tenants
each four ninths. So there is room for whoever comes last, as with the gateway's slots."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a sequence was not taken."""

    status: "generate_pb2.AdmitStatus.ValueType"
    message: str


def check_message(
    message: generate_pb2.GenerateRequest,
    model: ServedModel,
    others: Sequence[LiveSequence],
    *,
    num_waiting: int,
    num_waiting_of_tenant: int,
    max_num_waiting: int,
    deadline: float,
    now: float,
    kv_source: KvSource,
    prefill_only: bool,
    first_export_block: int,
    token_mask: TokenMask | None,
) -> SequenceRequest | Refusal:
    """Return what the engine is asked to do, or why nothing is.

    Args:
        message: as it came.
        model: that the worker serves.
        others: other attempts of the same sequence that are here.
        num_waiting: sequences that wait for admission.
        num_waiting_of_tenant: those of them that are the same tenant's.
        max_num_waiting: their limit.
        deadline: when the worker gives up, by its monotonic clock.
        now: by the same clock.
        kv_source: see `SequenceRequest`.
        prefill_only: see `SequenceRequest`.
        first_export_block: see `SequenceRequest`.
        token_mask: see `SequenceRequest`.
    """
    for name, process_id in (
        ("gateway_id", message.gateway_id),
        ("plan.prefill_worker_id", message.plan.prefill_worker_id),
    ):
        if process_id and not subjects.is_plain(process_id):
            return invalid(f"{name} is {process_id[:80]!r}, must be a plain id")
    if any(other.attempt > message.attempt and not other.is_ending for other in others):
        return invalid(f"attempt {message.attempt} of {message.request_id} has been superseded")
    if num_waiting >= max_num_waiting:
        return Refusal(
            generate_pb2.ADMIT_STATUS_OVERLOADED,
            f"{num_waiting} sequences wait, max_num_waiting is {max_num_waiting}",
        )
    num_free = max_num_waiting - num_waiting
    if num_waiting_of_tenant >= TIMES_FREE * num_free:
        return Refusal(
            generate_pb2.ADMIT_STATUS_OVERLOADED,
            f"{num_waiting_of_tenant} sequences of its tenant wait, and {num_free} of "
            f"{max_num_waiting} places (max_num_waiting) are free for everybody else",
        )
    if now >= deadline:
        return Refusal(
            generate_pb2.ADMIT_STATUS_OVERDUE, f"its deadline passed {now - deadline:.3f} s ago"
        )
    try:
        request = engine_messages.sequence_request(
            message,
            sequence_id=sequence_id_of(message.request_id, message.sequence_index, message.attempt),
            block_size=model.block_size,
            kv_source=kv_source,
            prefill_only=prefill_only,
            first_export_block=first_export_block,
            token_mask=token_mask,
            deadline=deadline,
        )
        check_request(
            request,
            model.config,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            groups=model.kv_groups,
        )
    except (RequestFormatError, EngineError) as error:
        return invalid(str(error))
    return request


def invalid(message: str) -> Refusal:
    """Refuse what no worker can serve."""
    return Refusal(generate_pb2.ADMIT_STATUS_INVALID, message)
