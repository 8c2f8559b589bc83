"""Puts a prefill worker together and serves it."""

import contextlib
import logging

from pagoda.rpc.v1 import generate_pb2, status_pb2
from pagoda_engine import KvCache
from pagoda_engine.cache import PeerPoolError, PoolExport
from pagoda_prefill.config import PrefillSettings
from pagoda_prefill.layer_events import LayerEvents
from pagoda_prefill.prefill_handler import PrefillHandler
from pagoda_prefill.prefill_sequence import PrefillSequence
from pagoda_runtime.messaging import subjects
from pagoda_runtime.process.service import ServiceContext
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_runtime.status import WorkerDirectory
from pagoda_worker.kv_transfer.grpc_producer import ExportedPool, GrpcProducer
from pagoda_worker.kv_transfer.nixl_pool import NixlExport
from pagoda_worker.open_worker import open_worker
from pagoda_worker.serve_role import serve_role
from pagoda_worker.telemetry.metrics import WorkerMetrics

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
            PrefillSequence,
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
            pool=_export_pool(worker.kv_cache, settings),
        )
        stack.push_async_callback(producer.close)
        handler = PrefillHandler(worker, producer)
        layer_events.listener = handler.on_layers
        directory = WorkerDirectory()
        directory.add_listener(handler.on_worker)
        worker_id = worker.identity.worker_id
        await serve_role(
            context,
            handler,
            directory,
            status_pb2.ROLE_DECODE,
            subjects.prefill(worker_id),
            generate_pb2.PrefillRequest,
            handler.on_prefill,
            on_ready=lambda: logger.info("takes prompts as %s", worker_id),
        )


def _export_pool(kv_cache: KvCache, settings: PrefillSettings) -> ExportedPool | None:
    try:
        if settings.kv_transfer == "host":
            return PoolExport(kv_cache)
        if settings.kv_transfer == "nixl":
            return NixlExport(kv_cache)
        return None
    except PeerPoolError as error:
        logger.warning("KV travels as gRPC payloads: %s", error)
        return None
