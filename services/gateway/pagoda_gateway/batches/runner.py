"""Runs batches that no other replica runs, and sweeps expired files. One for each replica."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from sqlalchemy import RowMapping
from sqlalchemy.exc import SQLAlchemyError

from pagoda_gateway import metrics
from pagoda_gateway.batches.batch_run import BatchRun, RunOptions
from pagoda_gateway.batches.batch_store import BatchStore
from pagoda_gateway.batches.file_store import FileStore
from pagoda_gateway.batches.line_request import Ask
from pagoda_gateway.batches.places import Places
from pagoda_runtime.tasks.background_tasks import BackgroundTasks

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0  # other replicas tell nobody of what they took or left
SWEEP_SECONDS = 60.0
STOP_SECONDS = 5.0
MAX_RUNS = 4  # batches at once; they share the lines' places
MAX_WAITING_RUNS = 60  # beside them, all of whose lines wait for their tenant's limits


class BatchRunner:
    """Looks for work and does it; made by `running_batches`."""

    def __init__(
        self,
        files: FileStore,
        batches: BatchStore,
        ask: Ask,
        places: Places,
        options: RunOptions,
    ) -> None:
        self._files = files
        self._batches = batches
        self._ask = ask
        self._options = options
        self._places = places
        self._tasks = BackgroundTasks()
        self._runs: set[BatchRun] = set()

    def start(self) -> None:
        """Begin to look for work."""
        self._looking = self._tasks.start(self._look(), name="batch runner")
        self._sweeping = self._tasks.start(self._sweep(), name="file sweeper")

    async def stop(self) -> None:
        """Store the answers that are here, leave the rest to others."""
        self._looking.cancel()
        self._sweeping.cancel()
        for run in self._runs:
            run.leave()
        await self._tasks.close(grace_seconds=STOP_SECONDS)

    async def _look(self) -> None:
        while True:
            batch, change = None, self._batches.change
            if self._has_room:
                with _logged("no batch can be looked for"):
                    batch = await self._batches.claim(self._options.owner, self._full_tenants)
            if batch is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await change.wait()
                continue
            run = BatchRun(
                batch, self._files, self._batches, self._ask, self._places, self._options
            )
            self._runs.add(run)
            self._tasks.start(self._run(run, batch), name=batch["batch_id"])

    @property
    def _has_room(self) -> bool:
        num_busy = sum(not run.is_waiting for run in self._runs)
        return num_busy < MAX_RUNS and len(self._runs) < MAX_RUNS + MAX_WAITING_RUNS

    @property
    def _full_tenants(self) -> list[str]:
        """Return who has as many batches here as may run: waiting ones leave the others room."""
        runs = Counter(run.tenant for run in self._runs)
        return [tenant for tenant, num_runs in runs.items() if num_runs >= MAX_RUNS]

    async def _run(self, run: BatchRun, batch: RowMapping) -> None:
        metrics.BATCHES.inc()
        try:
            # Whatever ends it early: the lease runs out, and somebody goes on where it stopped.
            with _logged(f"{batch['batch_id']} is left for now"):
                await run.run()
        finally:
            metrics.BATCHES.dec()
            self._runs.discard(run)

    async def _sweep(self) -> None:
        while True:
            with _logged("expired files are not deleted"):
                while await self._files.sweep():
                    pass
                await self._batches.forget()
            await asyncio.sleep(SWEEP_SECONDS)


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log what ends the block, and go on behind it."""
    try:
        yield
    except* (SQLAlchemyError, OSError) as group:  # TimeoutError is an OSError
        logger.warning("%s: %r", what, group.exceptions[0])
    except* Exception:
        logger.exception(what)


@contextlib.asynccontextmanager
async def running_batches(
    files: FileStore, batches: BatchStore, ask: Ask, places: Places, options: RunOptions
) -> AsyncIterator[None]:
    """Run batches until the context ends; with no place, none."""
    if not places.num_places:
        yield
        return
    runner = BatchRunner(files, batches, ask, places, options)
    runner.start()
    try:
        yield
    finally:
        await runner.stop()
