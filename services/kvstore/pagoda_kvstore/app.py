"""The kvstore process: opens the store, serves it, tells routers what it holds, closes it."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from pagoda.rpc.v1 import kv_store_pb2_grpc, status_pb2
from pagoda_formats.control_groups import memory_limit
from pagoda_kvstore import metrics
from pagoda_kvstore.change_log import ChangeLog, TierName
from pagoda_kvstore.config import KvstoreSettings
from pagoda_kvstore.held_blocks import HeldBlocks
from pagoda_kvstore.server import KvStoreServicer
from pagoda_kvstore.store import BlockStore
from pagoda_kvstore.tiers.memory import MemoryTier
from pagoda_kvstore.tiers.nvme import NvmeTier
from pagoda_kvstore.tiers.nvme_folder import first_free_folder
from pagoda_runtime import identity
from pagoda_runtime.errors import SettingsError
from pagoda_runtime.messaging.kv_events import KvEventPublisher
from pagoda_runtime.needed import needed_folder
from pagoda_runtime.process.service import ServiceContext
from pagoda_runtime.rpc_server import grpc_server
from pagoda_runtime.status import Heartbeat
from pagoda_runtime.tasks.ending import end

logger = logging.getLogger(__name__)

MIB = 2**20
LEAST_OWN_BYTES, OWN_BYTES = 128 * MIB, 512 * MIB
"""What the process needs beside its tiers: without the first it never works, with the second it
does under load."""


async def run(context: ServiceContext, settings: KvstoreSettings) -> None:
    """Serve until `context.stop` is set; then write what is queued for NVMe.

    Raises:
        SettingsError: what the store may hold in memory is more than this process may have.
    """
    check_memory(settings, memory_limit())
    health = context.health
    health.set_ready("store", False, "reading segments")
    health.set_ready("grpc", False, "starting")
    async with open_store(settings, settings.nvme_dir or context.common.home / "kvstore") as (
        store,
        worker_id,
    ):
        health.set_ready("store", True)
        with metrics.registered(store):
            await _serve(context, settings, store, worker_id)


def check_memory(settings: KvstoreSettings, limit_bytes: int | None) -> None:
    """Refuse a start that would end, without a word, once the store is full; warn where it may.

    Raises:
        SettingsError: it would.
    """
    if limit_bytes is None:
        return
    held_bytes = settings.cpu_bytes + settings.write_queue_bytes
    if held_bytes + OWN_BYTES <= limit_bytes:
        return
    arithmetic = (
        f"the memory limit of this container or control group is {limit_bytes // MIB} MiB: "
        f"PAGODA_KVSTORE_CPU_BYTES has {settings.cpu_bytes // MIB} MiB, "
        f"PAGODA_KVSTORE_WRITE_QUEUE_BYTES {settings.write_queue_bytes // MIB} MiB, the process "
        f"itself {LEAST_OWN_BYTES // MIB} MiB at least and {OWN_BYTES // MIB} MiB under load. "
        "Lower the first, or raise the limit (PAGODA_KVSTORE_MEM_LIMIT of compose.yaml)"
    )
    if held_bytes + LEAST_OWN_BYTES > limit_bytes:
        raise SettingsError([arithmetic])
    logger.warning("it may be killed for its memory: %s", arithmetic)


@contextlib.asynccontextmanager
async def open_store(
    settings: KvstoreSettings, folder_path: Path
) -> AsyncIterator[tuple[BlockStore, str]]:
    """Yield the store over a folder and the worker id kept there; write and close it on exit.

    Raises:
        NvmeFolderInUseError: other kvstores hold all folders.
        StartError: one cannot be made or written.
    """
    changes = ChangeLog()
    with needed_folder(folder_path, "PAGODA_KVSTORE_NVME_DIR"):
        folder = await asyncio.to_thread(first_free_folder, folder_path, settings.nvme_folders)
    worker_id = folder.store_id(lambda: identity.new_worker_id("kvstore"))
    try:
        nvme = await asyncio.to_thread(
            NvmeTier,
            folder,
            budget_bytes=settings.nvme_bytes,
            segment_bytes=settings.segment_bytes,
            on_change=lambda key, is_stored: changes.add(TierName.NVME, key.block_hash, is_stored),
        )
    except BaseException:
        folder.close()
        raise
    logger.info("%d blocks (%d bytes) found in %s", len(nvme), nvme.used_bytes, folder.path)
    store = BlockStore(
        MemoryTier(settings.cpu_bytes),
        nvme,
        changes=changes,
        max_queue_bytes=settings.write_queue_bytes,
    )
    try:
        yield store, worker_id
    finally:
        if not await store.close(settings.flush_seconds):
            logger.warning("not everything could be written within %g s", settings.flush_seconds)


async def _serve(
    context: ServiceContext, settings: KvstoreSettings, store: BlockStore, worker_id: str
) -> None:
    epoch = identity.new_epoch()
    servicer = KvStoreServicer(store)
    token = context.common.cluster_token.get_secret_value()
    async with (
        context.bus(worker_id) as bus,
        grpc_server(
            host=settings.grpc_host,
            port=settings.grpc_port,
            token=token,
            add=lambda server: kv_store_pb2_grpc.add_KvStoreServiceServicer_to_server(
                servicer, server
            ),
        ) as port,
    ):
        publisher = KvEventPublisher(
            bus,
            HeldBlocks(store),
            worker_id=worker_id,
            epoch=epoch,
            interval_seconds=settings.event_interval_seconds,
            snapshot_interval_seconds=settings.snapshot_interval_seconds,
        )
        wake = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, publisher.wake)
        store.changes.on_change = wake
        await publisher.listen()
        heartbeat = Heartbeat(bus, lambda: _status(store, worker_id, epoch, context.stop.is_set()))
        tasks = [
            context.tasks.create_task(publisher.run()),
            context.tasks.create_task(heartbeat.run()),
        ]
        logger.info("%s serves on port %d", worker_id, port)
        context.health.set_ready("grpc", True)
        try:
            await context.stop.wait()
        finally:
            context.health.set_ready("grpc", False, "stopping")
            await end(*tasks)


def _status(
    store: BlockStore, worker_id: str, epoch: str, is_stopping: bool
) -> status_pb2.WorkerStatus:
    state = status_pb2.WORKER_STATE_DRAINING if is_stopping else status_pb2.WORKER_STATE_READY
    return status_pb2.WorkerStatus(
        worker_id=worker_id,
        epoch=epoch,
        role=status_pb2.ROLE_KVSTORE,
        state=state,
        load=status_pb2.Load(num_blocks=len(store.memory) + len(store.nvme)),
        host_id=identity.host_id(),
    )
