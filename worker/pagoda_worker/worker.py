"""What prefill and decode workers share: the step loop, its sequences, what leaves the worker.

`Worker` ties the parts together and runs their background loops. What a role does with a sequence
is the business of its `SequenceHandler`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic

import grpc.aio
from opentelemetry.context import Context

from pagoda.rpc.v1 import adapter_pb2, status_pb2
from pagoda.rpc.v1.usage_pb2 import UsageRecord
from pagoda_engine import Engine, EngineLoad, KvSource, Reservation, StepCost, StepResult
from pagoda_runtime.errors import SettingsError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.kv_events import KvEventPublisher
from pagoda_runtime.status import Heartbeat
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.tasks.ending import end
from pagoda_runtime.tasks.ticks import next_tick
from pagoda_runtime.telemetry.steady_clock import SteadyClock
from pagoda_worker.adapters.adapter_list import AdapterList
from pagoda_worker.adapters.loaded_adapters import LoadedAdapters
from pagoda_worker.engine_loop import EngineLoop
from pagoda_worker.errors import AdapterRefusedError, EngineFailedError, EngineLoopError
from pagoda_worker.frame_publisher import FramePublisher
from pagoda_worker.grammars import Grammars
from pagoda_worker.heartbeat.status import Speed, WorkerIdentity, make_status
from pagoda_worker.sequence_handler import SequenceHandler
from pagoda_worker.sequences import S, SequenceTable
from pagoda_worker.served_model import ServedModel
from pagoda_worker.settings import WorkerSettings
from pagoda_worker.telemetry.gpu_metrics import register_gpu_metrics
from pagoda_worker.telemetry.metrics import WorkerMetrics
from pagoda_worker.telemetry.spans import StageRecorder
from pagoda_worker.telemetry.step_timeline import StepTimeline
from pagoda_worker.tiers.device_blocks import DeviceBlocks
from pagoda_worker.tiers.lower_tiers import LowerTiers
from pagoda_worker.tiers.resident_blocks import ParentHashes, ResidentBlocks
from pagoda_worker.usage_records import UsageRecorder

logger = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 0.25
USAGE_SECONDS = 5.0
KV_EVENT_INTERVAL_SECONDS = 0.15
FLUSH_SECONDS = 2.0
NUM_COPY_THREADS = 2
DEADLINE_PASSED = "the request's deadline has passed"


class Worker(Generic[S]):
    """One engine and everything around it; use it within `running`.

    Attributes:
        sequence_class: of the role.
        identity: who it is.
        model: what it serves.
        grammars: that bind its sequences.
        settings: as given.
        bus: to everybody else.
        metrics: of all parts.
        clock: unix seconds, for what is read; set right while no sequence is here.
        monotonic: seconds, for what is judged: deadlines, and how long cancellations are kept.
        kv_cache: bytes of the engine's blocks.
        sequences: that live here.
        executor: threads that copy KV.
        tasks: of sequences; ended with the worker.
        stages: records what sequences went through.
        speed: measured so far.
        tiers: below the pool.
        adapters: that are loaded.
        frames: on their way to gateways.
        usage: of sequences, on its way to the ledger.
        is_draining: nothing new is taken.
    """

    def __init__(
        self,
        sequence_class: type[S],
        *,
        identity: WorkerIdentity,
        engine: Engine,
        model: ServedModel,
        grammars: Grammars,
        resident: ResidentBlocks,
        parents: ParentHashes,
        settings: WorkerSettings,
        bus: Bus,
        kvstore: grpc.aio.Channel | None,
        metrics: WorkerMetrics,
        adapter_folders: Mapping[str, Path] | None = None,
        adapter_list: AdapterList | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sequence_class = sequence_class
        self.identity = identity
        self.model = model
        self.grammars = grammars
        self.settings = settings
        self.bus = bus
        self.metrics = metrics
        self.clock = SteadyClock()
        self.monotonic = monotonic
        self._engine = engine  # its step thread's, but for what may come from any
        self.kv_cache = engine.kv_cache
        self.sequences: SequenceTable[S] = SequenceTable()
        self.executor = ThreadPoolExecutor(NUM_COPY_THREADS, thread_name_prefix="kv-copy")
        self.tasks = BackgroundTasks()
        self.stages = StageRecorder(identity.worker_id, identity.epoch, metrics)
        self.speed = Speed()
        self.is_draining = False
        self.tiers = LowerTiers(
            kvstore,
            model=model,
            kv_cache=self.kv_cache,
            resident=resident,
            parents=parents,
            executor=self.executor,
            max_bytes=settings.write_through_bytes,
            writes_all=settings.write_through == "all",
            fetch_rate=self.speed.fetch,
            metrics=metrics,
            clock=self.clock,
        )
        if self.tiers.can_fetch:
            engine.use_lower_tier(self.tiers.match)
        self._parents = parents
        self._timeline = StepTimeline(
            identity.worker_id,
            identity.epoch,
            metrics,
            trace_interval=settings.step_trace_interval,
            clock=self.clock,
        )
        self._failure: asyncio.Future[EngineFailedError] = (
            asyncio.get_running_loop().create_future()
        )
        self._load: EngineLoad = engine.load()
        self._told_cost: StepCost | None = None
        self._heartbeat = Heartbeat(bus, self._status)
        metrics.kv_pool_bytes.set(self._load.num_blocks * self.kv_cache.block_bytes)
        self._register_gauges()
        register_gpu_metrics(metrics.registry, engine.model.device)
        self.frames = FramePublisher(
            bus.post,
            worker_id=identity.worker_id,
            epoch=identity.epoch,
            on_dropped=metrics.frames_dropped.inc,
        )
        self.usage = UsageRecorder(
            self._publish_usage,
            identity,
            on_dropped=metrics.usage_records_dropped.inc,
            clock=self.clock,
        )
        self._blocks = DeviceBlocks()
        self._kv_events = KvEventPublisher(
            bus,
            self._blocks,
            worker_id=identity.worker_id,
            epoch=identity.epoch,
            interval_seconds=KV_EVENT_INTERVAL_SECONDS,
            kv_identity=model.kv_identity,
        )
        self._loop: EngineLoop[Engine] = EngineLoop(
            engine,
            on_step=self._on_step,
            on_failure=self._on_failure,
            after_step=resident.after_step,
            observe=self._observe,
            niceness=settings.cpu_niceness if engine.model.device.type == "cpu" else 0,
        )
        self.adapters = LoadedAdapters(
            self._loop,
            description=engine.model.description,
            dtype=engine.model.dtype,
            max_rank=engine.max_adapter_rank,
            fixed=adapter_folders or {},
            listed=adapter_list,
        )
        self._role: SequenceHandler[S] | None = None

    @property
    def _handler(self) -> SequenceHandler[S]:
        assert self._role is not None
        return self._role

    @contextlib.asynccontextmanager
    async def running(
        self, handler: SequenceHandler[S], tasks: asyncio.TaskGroup
    ) -> AsyncIterator[None]:
        """Step, publish and report until the context ends; what lives then is ended.

        Args:
            handler: the role.
            tasks: gets the background loops; one that fails ends the service.
        """
        self._role = handler
        await self._kv_events.listen()
        self._loop.start()
        try:
            await self.adapters.start()
            await self.bus.serve(
                subjects.adapters(self.identity.worker_id),
                adapter_pb2.AdapterRequest,
                self.adapters.on_request,
            )
        except BaseException as error:
            await self._loop.stop()
            if isinstance(error, AdapterRefusedError):
                raise SettingsError([str(error)]) from error
            raise
        loops: list[Coroutine[Any, Any, None]] = [
            self.usage.run(),
            self.usage.report_progress(self.sequences),
            self._kv_events.run(),
            self._keep_house(),
            self.tiers.run(),
            self.adapters.follow(),
        ]
        running = [tasks.create_task(work) for work in loops]
        try:
            yield
        finally:
            await self._close(running)

    @contextlib.asynccontextmanager
    async def announced(self, tasks: asyncio.TaskGroup) -> AsyncIterator[None]:
        """Send heartbeats, so that work comes; say goodbye at the end. Begin once all is served."""
        task = tasks.create_task(self._heartbeat.run(), name="heartbeat")
        try:
            yield
        finally:
            await end(task)

    def add(self, sequence: S) -> "asyncio.Future[None]":
        """Hand a new sequence to the engine; the future tells whether it took it.

        Raises:
            EngineLoopError: no step will come, or too many commands wait.
        """
        request = sequence.request
        self._engine.announce(request)
        added = self._loop.call(lambda engine: engine.add(request))
        self.sequences.add(sequence)
        self._parents.add_chain(request.cache_root, request.block_hashes)
        return added

    def post_abort(self, sequence: S) -> None:
        """Let the engine forget a sequence in any state; its blocks are free then."""
        with contextlib.suppress(EngineLoopError):  # a loop that stopped holds nothing for anybody
            self._loop.post(lambda engine: engine.abort(sequence.sequence_id))

    def end_and_record(self, sequence: S, finish_reason: str) -> None:
        """Let the engine forget a sequence, as `post_abort` does, and record what it computed."""
        try:
            aborted = self._loop.call(lambda engine: engine.abort(sequence.sequence_id))
        except EngineLoopError:
            self.usage.add(sequence, finish_reason)
        else:
            self.usage.add_when(aborted, sequence, finish_reason)

    def post_import_finished(
        self,
        sequence: S,
        *,
        num_computed_tokens: int,
        first_token_id: int | None = None,
    ) -> None:
        """Let a sequence that waits for its import run."""
        with contextlib.suppress(EngineLoopError):
            self._loop.post(
                lambda engine: engine.import_finished(
                    sequence.sequence_id,
                    num_computed_tokens=num_computed_tokens,
                    first_token_id=first_token_id,
                )
            )

    async def drain(self) -> None:
        """Take nothing new; wait for what runs; end the rest, for another worker to go on."""
        self.is_draining = True
        await self._heartbeat.publish_now()
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                await self.sequences.empty.wait()
        except TimeoutError:
            logger.warning(
                "%d sequences did not end within the %g s of draining",
                len(self.sequences),
                self.settings.drain_seconds,
            )
        self._end_all(f"worker {self.identity.worker_id} is stopping; another one can go on")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self.sequences.empty.wait()
        await self.usage.drain(FLUSH_SECONDS)

    async def wait_until_failed_or(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set.

        Raises:
            EngineFailedError: the engine failed first; the frames that say so are out.
        """
        waiting = asyncio.ensure_future(stop.wait())
        try:
            both: list[asyncio.Future[Any]] = [waiting, self._failure]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._failure.done():
            await self.usage.drain(FLUSH_SECONDS)
            raise self._failure.result()

    def _observe(self, engine: Engine) -> None:
        self._load = engine.load()

    def _on_step(self, result: StepResult) -> None:
        self._timeline.begin(result, self.sequences)
        now = self.clock()
        for reservation in result.reserved:
            sequence = self.sequences.get(reservation.sequence_id)
            if sequence is not None:
                # The call that admits a sequence computes it too; one to import waits for us.
                is_computed = sequence.request.kv_source is KvSource.COMPUTE
                reserved = now - result.seconds if is_computed else now
                sequence.stages.reserved = max(reserved, sequence.stages.accepted)
                sequence.waited_for = reservation.waited_for
                self._handler.on_reserved(sequence, reservation)
                self._note_reused(sequence, reservation)
        for preemption in result.preempted:
            sequence = self.sequences.get(preemption.sequence_id)
            if sequence is not None:
                sequence.preempted, sequence.preempted_because = now, preemption.cause
                self.tiers.keep(preemption)
        for resumption in result.resumed:
            sequence = self.sequences.get(resumption.sequence_id)
            if sequence is not None:
                self._handler.on_resumed(sequence, resumption)
        for computed in result.computed:
            sequence = self.sequences.get(computed.sequence_id)
            if sequence is not None:
                self._handler.on_computed(sequence, computed)
        num_tokens = 0
        for output in result.outputs:
            num_tokens += len(output.token_ids)
            if output.hypotheses:
                num_tokens += sum(len(h.token_ids) for h in output.hypotheses)
            sequence = self.sequences.get(output.sequence_id)
            if sequence is not None:
                self._handler.on_output(sequence, output)
        self.frames.flush()
        if num_tokens:
            self.metrics.decode_tokens.inc(num_tokens)
        self._timeline.end(result.stats)
        if self._blocks.add((block_hash for block_hash, _ in result.stored), result.evicted):
            self._kv_events.wake()
        self.tiers.offer(result.stored, result.evicted)
        self._count(result)

    def _note_reused(self, sequence: S, reservation: Reservation) -> None:
        """Tell the tiers which blocks a sequence found on the device."""
        num_blocks = reservation.num_cached_tokens // self.settings.block_size
        held = slice(reservation.num_null_blocks, num_blocks)
        hashes = sequence.request.block_hashes[held]
        self.tiers.note_reused(zip(hashes, reservation.block_ids[held], strict=False))

    def _count(self, result: StepResult) -> None:
        stats = result.stats
        if stats.num_preempted:
            self.metrics.preemptions.inc(stats.num_preempted)
        if stats.given_up_seconds:
            self.metrics.given_up_seconds.inc(stats.given_up_seconds)
        if not stats.num_sequences:
            return
        self.speed.steps.add(stats)
        self.metrics.count_step(stats)

    def _on_failure(self, failure: EngineFailedError) -> None:
        self.is_draining = True
        for sequence in self.sequences:
            self._handler.fail(sequence, str(failure))
        self.frames.flush()
        if not self._failure.done():
            self._failure.set_result(failure)

    def _end_all(self, error: str) -> None:
        for sequence in self.sequences:
            self._handler.end(sequence, error)

    def _status(self) -> status_pb2.WorkerStatus:
        return make_status(
            self.identity,
            self.model,
            self._load,
            self.speed,
            num_waiting=self.sequences.num_waiting,
            max_num_waiting=self.settings.max_num_waiting,
            is_draining=self.is_draining,
            adapters=self.adapters.announced(),
        )

    async def _keep_house(self) -> None:
        while True:
            self._end_overdue()
            self._tell_step_cost()
            self._handler.on_housekeeping()
            if not len(self.sequences):
                self.clock.sync()
                if not self._engine.others_compute():
                    self.tiers.on_idle()
            await next_tick(HOUSEKEEPING_SECONDS)

    def _end_overdue(self) -> None:
        for sequence in self.sequences.overdue(self.monotonic()):
            self._handler.end(sequence, DEADLINE_PASSED)

    def _tell_step_cost(self) -> None:
        """Let the engine know how fast it is, if that has changed."""
        cost = self.speed.step_cost(self.kv_cache.block_bytes)
        if cost is not None and cost != self._told_cost:
            self._told_cost = cost
            with contextlib.suppress(EngineLoopError):
                self._loop.post(lambda engine: engine.set_step_cost(cost))

    def _register_gauges(self) -> None:
        """Have what is true at the moment told at the moment that somebody asks."""
        metrics, sequences = self.metrics, self.sequences
        metrics.num_requests_waiting.set_function(
            lambda: max(self._load.num_waiting, sequences.num_waiting)
        )
        metrics.num_requests_running.set_function(lambda: self._load.num_running)
        metrics.num_free_blocks.set_function(lambda: self._load.num_free_blocks)
        metrics.kv_cache_usage_ratio.set_function(
            lambda: 1 - self._load.num_free_blocks / self._load.num_blocks
        )
        metrics.transfer_bytes_per_second.set_function(lambda: self.speed.transfer.per_second)

    async def _publish_usage(self, record: UsageRecord, message_id: str) -> None:
        await self.bus.publish_durable(
            subjects.USAGE_SEQUENCES,
            record,
            message_id=message_id,
            timeout_seconds=USAGE_SECONDS,
            context=Context(),
        )

    async def _close(self, running: "list[asyncio.Task[None]]") -> None:
        self._end_all(f"worker {self.identity.worker_id} has stopped; another one can go on")
        await self.tasks.close()
        await end(*running)
        await self._loop.stop()
        self.executor.shutdown(wait=False, cancel_futures=True)
