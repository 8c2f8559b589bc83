"""gRPC servers of the platform: token check, trace context, health service, limits."""

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc  # type: ignore[import-untyped]
from opentelemetry.context import attach

from pagoda_runtime.errors import RpcServerError
from pagoda_runtime.telemetry.tracing import extract

MAX_MESSAGE_BYTES = 64 << 20
STOP_GRACE_SECONDS = 1.0
STOP_SECONDS = 5.0  # for calls that are cancelled after that: the process ends, whatever they do
HEALTH_PREFIX = "/grpc.health.v1.Health/"

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a port in use must fail, not be shared
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


@contextlib.asynccontextmanager
async def grpc_server(
    *, host: str, port: int, token: str, add: Callable[[grpc.aio.Server], None]
) -> AsyncIterator[int]:
    """Serve until the context ends; yields the bound port (`port` 0: any free one).

    Args:
        host: address to listen on.
        port: TCP port.
        token: callers must send it as `authorization: Bearer <token>`; empty: no check, loopback
        only.
        add: registers the servicers.

    Raises:
        RpcServerError: the port cannot be bound, or `host` is not loopback and there is no token.
    """
    if not token and not is_loopback(host):
        raise RpcServerError(
            f"refusing to listen on {host}:{port} without a token: "
            "set PAGODA_CLUSTER_TOKEN, or listen on 127.0.0.1"
        )
    server = grpc.aio.server(interceptors=[_Gate(token)], options=_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    add(server)
    try:
        bound = server.add_insecure_port(rpc_address(host, port))
    except RuntimeError as error:
        raise RpcServerError(
            f"cannot listen on {host}:{port}: set the process's ..._GRPC_PORT to a free port, and "
            "its ..._GRPC_HOST to an address of this machine"
        ) from error
    await server.start()
    try:
        yield bound
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await server.stop(STOP_GRACE_SECONDS)


def rpc_address(host: str, port: int) -> str:
    """Return where gRPC listens, or is reached: with brackets around an address of IPv6."""
    is_bare = ":" in host and not host.startswith("[")
    return f"[{host}]:{port}" if is_bare else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Gate(grpc.aio.ServerInterceptor):
    """Refuses calls without the token; makes the caller's trace context current in the handler."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode() if token else b""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        metadata = dict(details.invocation_metadata or ())
        handler = await continuation(details)
        if handler is None:
            return None
        if not self._is_allowed(details.method, metadata):
            return _REFUSING
        attach(
            extract({k: v for k, v in metadata.items() if isinstance(v, str)})
        )  # this call's task
        return handler

    def _is_allowed(self, method: str, metadata: dict[str, str | bytes]) -> bool:
        if not self._expected or method.startswith(HEALTH_PREFIX):
            return True
        given = metadata.get("authorization", "")
        return hmac.compare_digest(
            given.encode() if isinstance(given, str) else given, self._expected
        )


async def _refuse(_requests: Any, context: Any) -> AsyncIterator[Any]:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "wrong or missing bearer token: check PAGODA_CLUSTER_TOKEN",
    )
    yield


_REFUSING: Any = grpc.stream_stream_rpc_method_handler(_refuse)
"""Refuses calls of every kind. Of one with streams alone nothing is received before it is."""
