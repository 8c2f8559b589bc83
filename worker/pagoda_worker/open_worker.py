"""Opens a worker: model, bus, kvstore channel and `Worker`; closes them in reverse."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pagoda.rpc.v1 import status_pb2
from pagoda_engine import Engine, OnLayers, StartUp, device_name, load_engine
from pagoda_runtime.block_hash import hash_block
from pagoda_runtime.configuration.model_folder import resolve_model_folder
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.identity import new_epoch
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.service import ServiceContext, StoppedError
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_worker.adapters.adapter_list import AdapterList
from pagoda_worker.draft_model import find_draft
from pagoda_worker.engine_options import engine_options, settings_errors
from pagoda_worker.grammars import Grammars
from pagoda_worker.heartbeat.status import WorkerIdentity
from pagoda_worker.kv_transfer.nixl_pool import read_buffer_bytes
from pagoda_worker.sequences import S
from pagoda_worker.served_model import ServedModel
from pagoda_worker.settings import WorkerSettings
from pagoda_worker.telemetry.metrics import WorkerMetrics
from pagoda_worker.tiers.resident_blocks import ParentHashes, ResidentBlocks
from pagoda_worker.worker import Worker

logger = logging.getLogger(__name__)

MAX_PARENT_HASHES = 262_144


@contextlib.asynccontextmanager
async def open_worker(
    context: ServiceContext,
    settings: WorkerSettings,
    sequence_class: type[S],
    *,
    role: "status_pb2.Role.ValueType",
    metrics: WorkerMetrics | None = None,
    on_layers: OnLayers | None = None,
    shares_pool: bool = False,
) -> AsyncIterator[Worker[S]]:
    """Yield a worker that has its model but does not step yet; see `Worker.running`.

    `sequence_class` is the role's; `on_layers` and `shares_pool` are `load_engine`'s.

    Raises:
        SettingsError: the memory does not suffice for the settings and the model, or a setting does
            not suit this machine.
        ModelFolderError: the model cannot be used.
    """
    metrics = metrics or WorkerMetrics()
    resident, parents = ResidentBlocks(), ParentHashes(MAX_PARENT_HASHES)
    start_up = StartUp(_reporter(context.health), check_stop=_stop_check(context))
    with settings_errors(type(settings)):
        loading = _in_compute_thread(
            settings,
            lambda: _load(
                context,
                settings,
                resident,
                parents,
                start_up,
                on_layers,
                shares_pool,
                drafts=role == status_pb2.ROLE_DECODE,
            ),
        )
        engine = await context.unless_stopped(loading)
    model = engine.model
    grammars = await asyncio.to_thread(
        Grammars.load,
        resolve_model_folder(context.common),
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
    )
    for phase, seconds in start_up.seconds.items():
        metrics.startup_seconds.labels(phase.replace(" ", "_").lower()).set(seconds)
    logger.info("%s", start_up.summary())
    # The role says itself when it serves: a worker whose bus is not there yet is not ready.
    context.health.set_ready(context.name, False, "connecting")
    context.health.set_ready("model", True)
    identity = WorkerIdentity(context.instance_id, new_epoch(), role)
    token = context.common.cluster_token.get_secret_value()
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(context.bus(context.instance_id))
        kvstore = None
        if settings.kvstore_endpoint:
            kvstore = grpc_channel(settings.kvstore_endpoint, token=token)
            stack.push_async_callback(kvstore.close)
        yield Worker(
            sequence_class,
            identity=identity,
            engine=engine,
            model=ServedModel.of(
                engine, context.common.served_model_name, context.common.model_aliases
            ),
            grammars=grammars,
            resident=resident,
            parents=parents,
            settings=settings,
            bus=bus,
            kvstore=kvstore,
            metrics=metrics,
            adapter_folders=context.common.adapter_folders,
            adapter_list=_adapter_list(context.common),
        )


def _adapter_list(common: CommonSettings) -> AdapterList | None:
    folder = common.adapter_dir
    return None if folder is None else AdapterList(folder, common.served_model_name)


async def _in_compute_thread(settings: WorkerSettings, load: Callable[[], Engine]) -> Engine:
    """Return what `load` does; the threads that it starts to compute inherit their niceness."""
    niceness = settings.cpu_niceness if device_name(settings.device) == "cpu" else 0
    thread = ThreadPoolExecutor(1, "load", initializer=os.nice, initargs=(niceness,))
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, load)
    finally:
        thread.shutdown(wait=False)


def _load(
    context: ServiceContext,
    settings: WorkerSettings,
    resident: ResidentBlocks,
    parents: ParentHashes,
    start_up: StartUp,
    on_layers: OnLayers | None,
    shares_pool: bool,
    *,
    drafts: bool,
) -> Engine:
    def hash_and_remember(parent: bytes, token_ids: Sequence[int]) -> bytes:
        block_hash = hash_block(parent, token_ids)
        parents.add(parent, block_hash)
        return block_hash

    folder = resolve_model_folder(context.common)
    return load_engine(
        folder,
        engine_options(settings, context.common),
        hash_block=hash_and_remember,
        on_evict=resident.on_evict,
        on_layers=on_layers,
        shares_pool=shares_pool,
        read_buffer_bytes=read_buffer_bytes,
        draft_folder=find_draft(context.common, folder) if drafts else None,
        start_up=start_up,
    )


def _reporter(health: Health) -> Callable[[str], None]:
    """Return what tells the event loop, from another thread, what the start is doing."""
    loop = asyncio.get_running_loop()

    def report(text: str) -> None:
        loop.call_soon_threadsafe(health.set_ready, "model", False, text)

    return report


def _stop_check(context: ServiceContext) -> Callable[[], None]:
    """Return what ends a start in another thread once the service is told to stop."""

    def check() -> None:
        if context.stop.is_set():
            raise StoppedError

    return check
