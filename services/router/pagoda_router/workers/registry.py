"""The workers that are alive, as of their last heartbeat, with our own choices counted in.

Fed by the runtime's WorkerDirectory. Remembers which epoch of each worker is the current one.
"""

from collections import OrderedDict
from collections.abc import Callable

from pagoda.rpc.v1.status_pb2 import WorkerStatus
from pagoda_router.config import RouterSettings
from pagoda_router.workers.heartbeat import decode_worker
from pagoda_router.workers.pending_load import PendingLoads
from pagoda_router.workers.snapshot import WorkerRole, WorkerSnapshot

# Epochs of workers that are gone, kept so that their late events are recognised.
_MAX_EPOCHS = 4096


class WorkerRegistry:
    """Alive workers by id."""

    def __init__(
        self,
        settings: RouterSettings,
        pending_loads: PendingLoads,
        on_retired: Callable[[str, str], None] = lambda worker_id, epoch: None,
    ) -> None:
        """Call `on_retired(worker_id, epoch)` when a worker came back under another epoch."""
        self._settings, self._pending_loads, self._on_retired = settings, pending_loads, on_retired
        self._workers: dict[str, WorkerSnapshot] = {}
        self._epochs: OrderedDict[str, str] = OrderedDict()

    def on_status(self, worker_id: str, status: WorkerStatus | None) -> None:
        """Take what the directory says of a worker; None means gone."""
        worker = decode_worker(status, self._settings) if status is not None else None
        if worker is None:
            self._workers.pop(worker_id, None)
            self._pending_loads.forget(worker_id)
            return
        known = self._epochs.get(worker_id)
        if known is not None and known != worker.epoch:
            self._on_retired(worker_id, known)
        self._epochs[worker_id] = worker.epoch
        self._epochs.move_to_end(worker_id)
        if len(self._epochs) > _MAX_EPOCHS:
            self._epochs.popitem(last=False)
        self._workers[worker_id] = worker
        self._pending_loads.on_heartbeat(worker_id)

    def workers(self) -> list[WorkerSnapshot]:
        """Return prefill and decode workers with their pending load."""
        return [
            worker.plus(self._pending_loads.of(worker.worker_id))
            for worker in self._workers.values()
            if worker.role is not WorkerRole.KVSTORE
        ]

    def kvstores(self) -> dict[str, WorkerSnapshot]:
        """Return the kvstore of each host."""
        return {
            worker.host_id: worker
            for worker in sorted(self._workers.values(), key=lambda worker: worker.worker_id)
            if worker.role is WorkerRole.KVSTORE and worker.is_ready
        }

    def everyone(self) -> list[WorkerSnapshot]:
        """Return every process alive, kvstores included."""
        return list(self._workers.values())

    def is_outdated(self, worker_id: str, epoch: str) -> bool:
        """Return whether `epoch` is an earlier life of a worker than the last one heard of."""
        known = self._epochs.get(worker_id)
        return known is not None and epoch < known
