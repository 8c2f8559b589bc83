"""Loads and unloads LoRA adapters on all workers of a model, on the word of the administration.

Knows workers and what they answer. Knows no file: paths are the workers' own.
"""

import asyncio
import logging
from collections.abc import Sequence

from opentelemetry.context import Context

from pagoda.rpc.v1 import adapter_pb2
from pagoda.rpc.v1.status_pb2 import Role, WorkerStatus
from pagoda_gateway.catalog import Catalog
from pagoda_gateway.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    UnavailableError,
    shorten,
)
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.status import WorkerDirectory

logger = logging.getLogger(__name__)

WORKER_SECONDS = 55.0
"""That a worker may take; it gives up by itself before."""
HEARTBEATS_SECONDS = 3.0
"""In which this gateway hears from the workers what they have now."""
RETRY_AFTER_SECONDS = 2.0


class AdapterLoader:
    """All workers of a model do it, or the caller hears which one does not, and why."""

    def __init__(
        self, bus: Bus, catalog: Catalog, decoders: WorkerDirectory, prefillers: WorkerDirectory
    ) -> None:
        """Ask over `bus` those workers that the two directories know."""
        self._bus = bus
        self._catalog = catalog
        self._directories = decoders, prefillers
        self._changing = asyncio.Lock()

    async def load(self, base: str, name: str, path: str) -> None:
        """Have every worker of a model load an adapter; nothing happens where it is loaded.

        Args:
            base: name of the model.
            name: of the adapter.
            path: of its folder on the workers.

        Raises:
            InvalidRequestError: a worker refuses. Then none has it that had it not before.
            UnavailableError: there is no worker, or one does not answer.
        """
        full_name = f"{base}:{name}"
        async with self._changing:
            workers = self._workers(base)
            had = {w.worker_id for w in workers if any(a.name == name for a in w.model.adapters)}
            try:
                await self._ask_all(workers, adapter_pb2.AdapterRequest(name=name, path=path))
            except (InvalidRequestError, UnavailableError):
                if not had:
                    await self._take_back(workers, name)
                raise
            await self._catalog.changes_until(
                lambda entries: full_name in entries, HEARTBEATS_SECONDS
            )

    async def unload(self, base: str, name: str) -> None:
        """Have every worker of a model take no further sequences with an adapter.

        Raises:
            ModelNotFoundError: no worker has it.
            InvalidRequestError, UnavailableError: see `load`.
        """
        full_name = f"{base}:{name}"
        async with self._changing:
            if full_name not in self._catalog.entries:
                raise ModelNotFoundError(
                    f"the adapter {shorten(full_name)} is not loaded", param="lora_name"
                )
            await self._ask_all(self._workers(base), adapter_pb2.AdapterRequest(name=name))
            await self._catalog.changes_until(
                lambda entries: full_name not in entries, HEARTBEATS_SECONDS
            )

    def _workers(self, base: str) -> list[WorkerStatus]:
        roles = Role.ROLE_DECODE, Role.ROLE_PREFILL
        workers = [
            status
            for directory, role in zip(self._directories, roles, strict=True)
            for status in directory.alive(role)
            if status.model.name == base
        ]
        if not any(worker.role == Role.ROLE_DECODE for worker in workers):
            raise UnavailableError(
                f"no decode worker serves {shorten(base)}; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        return workers

    async def _ask_all(
        self, workers: Sequence[WorkerStatus], request: adapter_pb2.AdapterRequest
    ) -> None:
        answers = await asyncio.gather(
            *(self._ask(worker, request) for worker in workers), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _ask(self, worker: WorkerStatus, request: adapter_pb2.AdapterRequest) -> None:
        try:
            answer = await self._bus.request(
                subjects.adapters(worker.worker_id),
                request,
                adapter_pb2.AdapterResponse,
                timeout_seconds=WORKER_SECONDS,
                context=Context(),
            )
        except BusError as error:
            raise UnavailableError(
                f"worker {worker.worker_id} does not answer ({error}); try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            ) from error
        if answer.status != adapter_pb2.ADAPTER_STATUS_DONE:
            raise InvalidRequestError(
                f"worker {worker.worker_id} refuses: {answer.message}",
                param="lora_path" if request.path else "lora_name",
            )

    async def _take_back(self, workers: Sequence[WorkerStatus], name: str) -> None:
        try:
            await self._ask_all(workers, adapter_pb2.AdapterRequest(name=name))
        except (InvalidRequestError, UnavailableError) as error:
            logger.warning("adapter %s may be loaded on some workers: %s", shorten(name), error)
