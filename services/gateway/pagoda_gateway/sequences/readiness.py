"""Whether a request could be placed now: is there a router, is there a decode worker.

Knows heartbeats and health components. Knows no request.
"""

from pagoda.rpc.v1.status_pb2 import Role, WorkerStatus
from pagoda_runtime.process.health import Health


class Readiness:
    """Keeps the components `model` and `router` of a gateway's health true."""

    def __init__(self, health: Health, served_name: str) -> None:
        self._health = health
        self._served_name = served_name
        self._routers: set[str] = set()
        self._say_routers()

    def on_decode_workers(self, num_alive: int) -> None:
        """Hear how many decode workers serve the model now."""
        detail = "" if num_alive else f"no decode worker serves '{self._served_name}' now"
        self._health.set_ready("model", num_alive > 0, detail)

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
