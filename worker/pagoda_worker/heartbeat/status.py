"""A worker's heartbeat: who it is, what it serves, how busy and how fast it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pagoda.rpc.v1 import status_pb2
from pagoda_engine import EngineLoad, StepCost
from pagoda_runtime.identity import host_id
from pagoda_worker.heartbeat.speed_model import Rate, SpeedModel
from pagoda_worker.served_model import ServedModel

FETCH_SECONDS = 2e-3  # of any fetch from the kvstore, beside its bytes
PRIOR_FETCH_BYTES_PER_SECOND = 1e9  # until one was measured


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who this worker is; the epoch is new at each start."""

    worker_id: str
    epoch: str
    role: "status_pb2.Role.ValueType"


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a worker is at what it does, measured while it serves.

    Attributes:
        steps: of its engine.
        transfer: bytes sent to consumers.
        fetch: bytes fetched from the kvstore.
    """

    steps: SpeedModel = field(default_factory=SpeedModel)
    transfer: Rate = field(default_factory=Rate)
    fetch: Rate = field(default_factory=Rate)

    def step_cost(self, block_bytes: int) -> StepCost | None:
        """Return what an engine goes by, in seconds; None until some decodes were measured."""
        cost = self.steps.step_cost
        if cost is None:
            return None
        rate = self.fetch.per_second or PRIOR_FETCH_BYTES_PER_SECOND
        return replace(cost, fetch_base=FETCH_SECONDS, per_fetched_block=block_bytes / rate)


def make_status(
    identity: WorkerIdentity,
    model: ServedModel,
    load: EngineLoad,
    speed: Speed,
    *,
    num_waiting: int,
    max_num_waiting: int,
    is_draining: bool,
    adapters: Sequence[status_pb2.Adapter] = (),
) -> status_pb2.WorkerStatus:
    """Return the status of this moment.

    Args:
        identity: of the worker.
        model: that it serves.
        load: of its engine.
        speed: of all it does.
        num_waiting: sequences that no step has taken up, as far as the event loop knows.
        max_num_waiting: their limit.
        is_draining: it takes nothing new.
        adapters: that are loaded.
    """
    step_time = speed.steps.step_time
    # Who predicts a step's time knows nothing of drafts: theirs is each sequence's.
    per_sequence = step_time.per_sequence + speed.steps.draft_seconds_per_decode
    card = model.card()
    card.adapters.extend(adapters)
    return status_pb2.WorkerStatus(
        worker_id=identity.worker_id,
        epoch=identity.epoch,
        role=identity.role,
        state=status_pb2.WORKER_STATE_DRAINING if is_draining else status_pb2.WORKER_STATE_READY,
        model=card,
        host_id=host_id(),
        shares_processors=model.shares_processors,
        load=status_pb2.Load(
            num_waiting=max(load.num_waiting, num_waiting),
            num_running=load.num_running,
            num_waiting_tokens=load.num_waiting_tokens,
            num_blocks=load.num_blocks,
            num_free_blocks=load.num_free_blocks,
            num_context_tokens=load.num_context_tokens,
            max_num_seqs=model.config.max_num_seqs,
            max_num_waiting=max_num_waiting,
        ),
        speed=status_pb2.Speed(
            prefill_tokens_per_second=speed.steps.prefill_tokens_per_second,
            prefill_age_seconds=speed.steps.prefill_age_seconds,
            step_base_ms=step_time.base * 1e3,
            step_per_sequence_ms=per_sequence * 1e3,
            step_per_context_token_ms=step_time.per_context_token * 1e3,
            step_per_proposed_token_ms=step_time.per_proposed_token * 1e3,
            proposed_per_decode=speed.steps.proposed_per_decode,
            accepted_per_decode=speed.steps.accepted_per_decode,
            transfer_bytes_per_second=speed.transfer.per_second,
            fetch_bytes_per_second=speed.fetch.per_second,
        ),
    )
