"""Wires the prefill worker to NATS, and drains it."""

import contextlib
import logging

from pagoda.rpc.v1 import generate_pb2, status_pb2
from pagoda_engine.cache import PeerPoolError, PoolExport
from pagoda_prefill.config import PrefillSettings
from pagoda_prefill.layer_events import LayerEvents
from pagoda_prefill.prefill_handler import PrefillHandler
from pagoda_runtime.messaging import subjects
from pagoda_runtime.process.service import ServiceContext
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_runtime.status import WorkerDirectory
from pagoda_worker.kv_transfer.base import KvProducer
from pagoda_worker.kv_transfer.grpc_producer import ExportedPool, GrpcProducer
from pagoda_worker.kv_transfer.nixl_pool import NixlExport
from pagoda_worker.open_worker import open_worker
from pagoda_worker.telemetry.metrics import WorkerMetrics
from pagoda_worker.worker import Worker

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
    layer_events = LayerEvents()
    async with (
        open_worker(
            context,
            settings,
            role=status_pb2.ROLE_PREFILL,
            metrics=metrics,
            on_layers=layer_events,
            shares_pool=settings.kv_transfer == "host",
        ) as worker,
        contextlib.AsyncExitStack() as stack,
    ):
        token = context.common.cluster_token.get_secret_value()
        producer = producer_class(
            worker.kv_cache,
            kv_identity=worker.model.kv_identity,
            open_channel=lambda endpoint: grpc_channel(endpoint, token=token),
            executor=worker.executor,
            pool=_export_pool(worker, settings),
        )
        stack.push_async_callback(producer.close)
        await _serve(context, worker, producer, layer_events, stack)


async def _serve(
    context: ServiceContext,
    worker: Worker,
    producer: KvProducer,
    layer_events: LayerEvents,
    stack: contextlib.AsyncExitStack,
) -> None:
    handler = PrefillHandler(worker, producer)
    layer_events.listener = handler.on_layers
    directory = WorkerDirectory()
    directory.add_listener(handler.on_worker)
    await stack.enter_async_context(worker.running(handler, context.tasks))
    worker_id = worker.identity.worker_id
    for subscription in (
        await directory.subscribe(worker.bus),
        await worker.bus.subscribe(
            subjects.cancel(worker_id), generate_pb2.CancelRequest, handler.on_cancel
        ),
        await worker.bus.serve(
            subjects.prefill(worker_id), generate_pb2.PrefillRequest, handler.on_prefill
        ),
    ):
        stack.push_async_callback(subscription.unsubscribe)
    await stack.enter_async_context(worker.announced(context.tasks))
    context.health.set_ready("prefill", True)
    logger.info("takes prompts as %s", worker_id)
    await worker.wait_until_failed_or(context.stop)
    await worker.drain()


def _export_pool(worker: Worker, settings: PrefillSettings) -> ExportedPool | None:
    try:
        if settings.kv_transfer == "host":
            return PoolExport(worker.kv_cache)
        if settings.kv_transfer == "nixl":
            return NixlExport(worker.kv_cache)
        return None
    except PeerPoolError as error:
        logger.warning("KV travels as gRPC payloads: %s", error)
        return None
