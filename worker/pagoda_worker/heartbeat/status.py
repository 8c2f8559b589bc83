"""A worker's heartbeat: what it serves, how busy and how fast it is."""

from typing import TYPE_CHECKING

from pagoda.rpc.v1 import status_pb2
from pagoda_runtime.identity import host_id

if TYPE_CHECKING:
    from pagoda_worker.worker import Worker


def make_status(worker: "Worker") -> status_pb2.WorkerStatus:
    """Return the status of this moment."""
    load, step_time = worker.load, worker.speed.step_time
    state = (
        status_pb2.WORKER_STATE_DRAINING if worker.is_draining else status_pb2.WORKER_STATE_READY
    )
    return status_pb2.WorkerStatus(
        worker_id=worker.identity.worker_id,
        epoch=worker.identity.epoch,
        role=worker.identity.role,
        state=state,
        model=worker.model.card(),
        host_id=host_id(),
        load=status_pb2.Load(
            num_waiting=max(load.num_waiting, worker.sequences.num_waiting),
            num_running=load.num_running,
            num_waiting_tokens=load.num_waiting_tokens,
            num_blocks=load.num_blocks,
            num_free_blocks=load.num_free_blocks,
            num_context_tokens=load.num_context_tokens,
            max_num_seqs=worker.model.config.max_num_seqs,
            max_num_waiting=worker.settings.max_num_waiting,
        ),
        speed=status_pb2.Speed(
            prefill_tokens_per_second=worker.speed.prefill_tokens_per_second,
            step_base_ms=step_time.base * 1e3,
            step_per_sequence_ms=step_time.per_sequence * 1e3,
            step_per_context_token_ms=step_time.per_context_token * 1e3,
            transfer_bytes_per_second=worker.transfer_rate.per_second,
            fetch_bytes_per_second=worker.fetch_rate.per_second,
        ),
    )
