"""Puts a decode worker together and serves it: its gRPC server takes KV."""

import contextlib
import logging

import grpc.aio

from pagoda.rpc.v1 import generate_pb2, kv_transfer_pb2_grpc, status_pb2
from pagoda_decode.config import DecodeSettings
from pagoda_decode.decode_handler import DecodeHandler
from pagoda_decode.decode_sequence import DecodeSequence
from pagoda_runtime.messaging import subjects
from pagoda_runtime.process.service import ServiceContext
from pagoda_runtime.rpc_server import grpc_server, rpc_address
from pagoda_runtime.status import WorkerDirectory
from pagoda_worker.kv_transfer.consumer import KvConsumer
from pagoda_worker.open_worker import open_worker
from pagoda_worker.serve_role import serve_role
from pagoda_worker.telemetry.metrics import WorkerMetrics

logger = logging.getLogger(__name__)


async def serve(
    context: ServiceContext, settings: DecodeSettings, *, metrics: WorkerMetrics | None = None
) -> None:
    """Run a decode worker until it is told to stop and has drained.

    Raises:
        EngineFailedError: the engine failed; its sequences were told.
    """
    async with (
        open_worker(
            context, settings, DecodeSequence, role=status_pb2.ROLE_DECODE, metrics=metrics
        ) as worker,
        contextlib.AsyncExitStack() as stack,
    ):
        handler = DecodeHandler(worker, lease_seconds=settings.lease_seconds)
        consumer = KvConsumer(
            handler.leases,
            kv_cache=worker.kv_cache,
            kv_identity=worker.model.kv_identity,
            executor=worker.executor,
            on_bad_blocks=worker.metrics.bad_digests.labels("transfer").inc,
            clock=worker.clock,
        )
        stack.callback(consumer.close)

        def add(server: grpc.aio.Server) -> None:
            kv_transfer_pb2_grpc.add_KvTransferServiceServicer_to_server(consumer, server)

        port = await stack.enter_async_context(
            grpc_server(
                host=settings.grpc_host,
                port=settings.grpc_port,
                token=context.common.cluster_token.get_secret_value(),
                add=add,
            )
        )
        handler.endpoint = rpc_address(settings.advertised_host, port)
        directory = WorkerDirectory()
        directory.add_listener(handler.on_worker)  # settles leases before their pool is closed
        directory.add_listener(consumer.on_worker)
        worker_id = worker.identity.worker_id
        for subscription in (
            await worker.bus.serve(
                subjects.probe(worker_id), generate_pb2.ProbeRequest, handler.on_probe
            ),
            await worker.bus.subscribe(
                subjects.release(worker_id), generate_pb2.LeaseRelease, handler.on_release
            ),
        ):
            stack.push_async_callback(subscription.unsubscribe)
        await serve_role(
            context,
            handler,
            directory,
            status_pb2.ROLE_PREFILL,
            subjects.decode(worker_id),
            generate_pb2.GenerateRequest,
            handler.on_generate,
            on_ready=lambda: logger.info(
                "takes sequences as %s, KV at %s", worker_id, handler.endpoint
            ),
        )
