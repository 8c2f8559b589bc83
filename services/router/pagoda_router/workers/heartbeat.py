"""A worker's heartbeat -> its snapshot, with priors for speeds that it has not measured."""

import math

from pagoda.rpc.v1 import status_pb2
from pagoda_router.config import RouterSettings
from pagoda_router.workers.snapshot import Speeds, WorkerRole, WorkerSnapshot

_LEAST_RATE = 1e-3  # tokens or bytes a second; what is less would take for ever

_ROLES = {
    status_pb2.ROLE_PREFILL: WorkerRole.PREFILL,
    status_pb2.ROLE_DECODE: WorkerRole.DECODE,
    status_pb2.ROLE_KVSTORE: WorkerRole.KVSTORE,
}


def decode_worker(
    status: status_pb2.WorkerStatus, settings: RouterSettings
) -> WorkerSnapshot | None:
    """Return the worker, priors for speeds it has not measured; None if its role is unknown."""
    role = _ROLES.get(status.role)
    if role is None:
        return None
    model, load = status.model, status.load
    return WorkerSnapshot(
        worker_id=status.worker_id,
        epoch=status.epoch,
        role=role,
        is_ready=status.state == status_pb2.WORKER_STATE_READY,
        host_id=status.host_id,
        model=model.name,
        kv_identity=model.kv_identity,
        block_size=model.block_size,
        block_bytes=model.block_bytes,
        max_model_len=model.max_model_len,
        num_waiting=load.num_waiting,
        num_running=load.num_running,
        num_waiting_tokens=load.num_waiting_tokens,
        num_blocks=load.num_blocks,
        num_free_blocks=load.num_free_blocks,
        num_context_tokens=load.num_context_tokens,
        max_num_seqs=load.max_num_seqs,
        max_num_waiting=load.max_num_waiting,
        speeds=_decode_speeds(status.speed, settings),
        adapters=frozenset(adapter.digest for adapter in model.adapters),
        shares_processors=status.shares_processors,
        kv_window=model.kv_window,
        part_behind_window=model.block_bytes_behind_window / (model.block_bytes or 1),
    )


def _decode_speeds(speed: status_pb2.Speed, settings: RouterSettings) -> Speeds:
    steps = (
        _at_least_0(speed.step_base_ms),
        _at_least_0(speed.step_per_sequence_ms),
        _at_least_0(speed.step_per_context_token_ms),
    )
    if not any(steps):
        steps = (
            settings.prior_step_base_ms,
            settings.prior_step_per_sequence_ms,
            settings.prior_step_per_context_token_ms,
        )
    is_measured = _LEAST_RATE <= speed.prefill_tokens_per_second < math.inf
    return Speeds(
        _positive(speed.prefill_tokens_per_second, settings.prior_prefill_tokens_per_second),
        *steps,
        _positive(speed.transfer_bytes_per_second, settings.prior_transfer_bytes_per_second),
        _positive(speed.fetch_bytes_per_second, settings.prior_fetch_bytes_per_second),
        _at_least_0(speed.step_per_proposed_token_ms),
        _at_least_0(speed.proposed_per_decode),
        _at_least_0(speed.accepted_per_decode),
        prefill_age_seconds=_at_least_0(speed.prefill_age_seconds) if is_measured else math.inf,
    )


def _positive(measured: float, prior: float) -> float:
    return measured if _LEAST_RATE <= measured < math.inf else prior


def _at_least_0(value: float) -> float:
    return value if 0 <= value < math.inf else 0.0
