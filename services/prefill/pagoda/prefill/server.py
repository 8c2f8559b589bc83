"""Wires the prefill worker to NATS, and drains it."""

import contextlib
import logging

from pagoda.prefill.config import PrefillSettings
from pagoda.prefill.prefilling import Prefilling
from pagoda.rpc.v1 import generate_pb2, status_pb2
from pagoda.runtime import subjects
from pagoda.runtime.rpc_client import grpc_channel
from pagoda.runtime.service import ServiceContext
from pagoda.runtime.status import WorkerDirectory
from pagoda.worker.kv_transfer.base import KvProducer
from pagoda.worker.kv_transfer.grpc_producer import GrpcProducer
from pagoda.worker.kv_transfer.shared_memory import Arena, ArenaError
from pagoda.worker.metrics import WorkerMetrics
from pagoda.worker.open_worker import open_worker
from pagoda.worker.worker import Worker

logger = logging.getLogger(__name__)


async def serve(
    context: ServiceContext,
    settings: PrefillSettings,
    *,
    metrics: WorkerMetrics | None = None,
    producer_class: type[GrpcProducer] = GrpcProducer,
) -> None:
    """Run a prefill worker until it is told to stop and has drained.

    Raises:
        EngineFailedError: the engine failed; the consumers were told.
    """
    async with (
        open_worker(context, settings, role=status_pb2.ROLE_PREFILL, metrics=metrics) as worker,
        contextlib.AsyncExitStack() as stack,
    ):
        token = context.common.cluster_token.get_secret_value()
        producer = producer_class(
            worker.kv_cache,
            kv_identity=worker.kv_identity,
            open_channel=lambda endpoint: grpc_channel(endpoint, token=token),
            executor=worker.executor,
            arena=_open_arena(worker, settings),
        )
        stack.push_async_callback(producer.close)
        await _serve(context, worker, producer, stack)


async def _serve(
    context: ServiceContext,
    worker: Worker,
    producer: KvProducer,
    stack: contextlib.AsyncExitStack,
) -> None:
    prefilling = Prefilling(worker, producer)
    directory = WorkerDirectory()
    directory.add_listener(prefilling.on_worker)
    await stack.enter_async_context(worker.running(prefilling, context.tasks))
    worker_id = worker.identity.worker_id
    for subscription in (
        await directory.subscribe(worker.bus),
        await worker.bus.subscribe(
            subjects.cancel(worker_id), generate_pb2.CancelRequest, prefilling.on_cancel
        ),
        await worker.bus.serve(
            subjects.prefill(worker_id), generate_pb2.PrefillRequest, prefilling.on_prefill
        ),
    ):
        stack.push_async_callback(subscription.unsubscribe)
    await stack.enter_async_context(worker.announced(context.tasks))
    context.health.set_ready("prefill", True)
    logger.info("takes prompts as %s", worker_id)
    await worker.wait_until_failed_or(context.stop)
    await worker.drain()


def _open_arena(worker: Worker, settings: PrefillSettings) -> Arena | None:
    if not settings.shared_memory_bytes:
        return None
    try:
        return Arena(slot_bytes=worker.kv_cache.block_bytes, max_bytes=settings.shared_memory_bytes)
    except ArenaError as error:
        logger.warning("no shared memory, KV travels as gRPC payloads: %s", error)
        return None
