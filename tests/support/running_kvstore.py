"""A real kvstore in the event loop of a test, beside the workers of a `Cluster`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from pagoda.rpc.v1 import kv_event_pb2, kv_store_pb2, kv_store_pb2_grpc
from pagoda_kvstore.app import run as run_kvstore
from pagoda_kvstore.config import KvstoreSettings
from pagoda_runtime.block_hash import split_hashes
from pagoda_runtime.identity import new_request_id
from pagoda_runtime.messaging import subjects
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.service import ServiceContext
from pagoda_runtime.rpc_client import grpc_channel
from support.servers import free_port
from support.worker_cluster import SECONDS, Answer, Cluster


@dataclass
class Kvstore:
    """A real kvstore in this event loop, and the hashes it says it holds."""

    cluster: Cluster
    endpoint: str
    held: set[bytes]
    changed: asyncio.Condition

    async def holds(self, answer: Answer) -> None:
        wanted = set(split_hashes(answer.request.block_hashes))
        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(lambda: wanted <= self.held)


@contextlib.asynccontextmanager
async def running_kvstore(
    cluster: Cluster, folder: Path, *, port: int | None = None
) -> AsyncIterator[Kvstore]:
    settings = KvstoreSettings(grpc_port=port or free_port(), nvme_bytes=0, nvme_dir=folder)
    stop = asyncio.Event()
    store = Kvstore(cluster, f"127.0.0.1:{settings.grpc_port}", set(), asyncio.Condition())

    async def on_events(events: list[kv_event_pb2.KvEvent]) -> None:
        async with store.changed:
            for event in events:
                if event.worker_id == worker_id and event.tier == kv_event_pb2.TIER_CPU:
                    store.held.update(split_hashes(event.stored))
            store.changed.notify_all()

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            context = ServiceContext("kvstore", "kvstore-1", cluster.common, Health(), stop, tasks)
            await run_kvstore(context, settings)

    task = asyncio.create_task(serve())
    async with grpc_channel(store.endpoint, token="test-cluster-token") as channel:
        stub = kv_store_pb2_grpc.KvStoreServiceStub(channel)
        nothing = kv_store_pb2.MatchRequest(kv_identity=bytes(16))
        await stub.Match(nothing, timeout=SECONDS, wait_for_ready=True)
    worker_id = (folder / "store_id").read_text().strip()
    await cluster.bus.consume(
        subjects.KV_EVENTS_STREAM,
        f"test-{new_request_id()}",
        kv_event_pb2.KvEvent,
        on_events,
        batch=10,
    )
    try:
        yield store
    finally:
        stop.set()
        await task
