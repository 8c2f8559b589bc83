"""Whether a request could be placed now: is there a router, is there a decode worker.

Knows heartbeats and health components. Knows no request.
"""

from collections.abc import Mapping

from pagoda.rpc.v1.status_pb2 import Role, WorkerStatus
from pagoda_gateway import metrics
from pagoda_runtime.process.health import Health


class Readiness:
    """Keeps the components `model` and `router` of a gateway's health true.

    `model` says which models have no decode worker, and is ready while the gateway's own has one:
    if another one's absence made the gateway not ready, its own clients would be sent away too.
    """

    def __init__(self, health: Health, own_model: str) -> None:
        self._health = health
        self._own_model = own_model
        self._routers: set[str] = set()
        self._say_routers()

    def on_decode_workers(self, num_alive: Mapping[str, int]) -> None:
        """Hear how many decode workers serve each model now."""
        for name, number in num_alive.items():
            metrics.DECODE_WORKERS.labels(name).set(number)
        missing = [f"'{name}'" for name, number in num_alive.items() if not number]
        detail = f"no decode worker serves {', '.join(missing)} now" if missing else ""
        self._health.set_ready("model", num_alive[self._own_model] > 0, detail)

    def on_status(self, process_id: str, status: WorkerStatus | None) -> None:
        """Hear of a process, or of its end (None)."""
        if status is not None and status.role == Role.ROLE_ROUTER:
            self._routers.add(process_id)
        elif status is None:
            self._routers.discard(process_id)
        else:
            return
        self._say_routers()

    def _say_routers(self) -> None:
        detail = "" if self._routers else "no router is alive now"
        self._health.set_ready("router", bool(self._routers), detail)
