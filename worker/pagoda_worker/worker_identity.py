"""Who a worker is."""

from dataclasses import dataclass

from pagoda.rpc.v1 import status_pb2


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who this worker is; the epoch is new at each start."""

    worker_id: str
    epoch: str
    role: "status_pb2.Role.ValueType"
