"""Wires a role to NATS, announces its worker, and drains it.

Knows what both roles listen to. Knows nothing of what a role does with a request.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message
from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2
from pagoda.rpc.v1.status_pb2 import Role
from pagoda_runtime.messaging import subjects
from pagoda_runtime.process.service import ServiceContext, keep_loaded
from pagoda_runtime.status import WorkerDirectory
from pagoda_worker.role_handler import RoleHandler
from pagoda_worker.sequences import S

M = TypeVar("M", bound=Message)


async def serve_role(
    context: ServiceContext,
    handler: RoleHandler[S],
    directory: WorkerDirectory,
    peer: "Role.ValueType",
    subject: str,
    request_type: type[M],
    on_request: Callable[[M, Context], Awaitable[Message]],
    *,
    on_ready: Callable[[], None],
) -> None:
    """Step and answer requests until the service is told to stop; then drain.

    Args:
        context: of the service.
        handler: the role; its worker must not step yet.
        directory: with its listeners; subscribed to here.
        peer: role of the workers that this one deals with.
        subject: of requests for this worker.
        request_type: of them.
        on_request: answers one.
        on_ready: called once all is served.

    Raises:
        EngineFailedError: the engine failed; its sequences were told.
    """
    worker = handler.worker
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(worker.running(handler, context.tasks))
        cancel = subjects.cancel(worker.identity.worker_id)
        gateways = WorkerDirectory()
        gateways.add_listener(handler.on_gateway)
        for subscription in (
            await directory.subscribe(worker.bus, peer),
            await gateways.subscribe(worker.bus, Role.ROLE_GATEWAY),
            await worker.bus.subscribe(cancel, generate_pb2.CancelRequest, handler.on_cancel),
            await worker.bus.serve(subject, request_type, on_request),
        ):
            stack.push_async_callback(subscription.unsubscribe)
        keep_loaded()
        await stack.enter_async_context(worker.announced(context.tasks))
        context.health.set_ready(context.name, True)
        on_ready()
        await worker.wait_until_failed_or(context.stop)
        await worker.drain()
