"""gRPC channels of the platform: token, trace context, keepalive; no call without a deadline.

A thin channel around grpc's own rather than interceptors: those cost a queue hop for each streamed
message.
"""

from typing import Any, Self

import grpc
import grpc.aio

from pagoda_runtime.rpc_server import MAX_MESSAGE_BYTES
from pagoda_runtime.telemetry.tracing import inject

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


def grpc_channel(endpoint: str, *, token: str) -> grpc.aio.Channel:
    """Return a channel to `endpoint` (host:port), to be closed. Every call must pass `timeout=`."""
    return _Channel(grpc.aio.insecure_channel(endpoint, options=_OPTIONS), token)


class _Channel(grpc.aio.Channel):
    """Adds metadata to each call and insists on its deadline."""

    def __init__(self, inner: grpc.aio.Channel, token: str) -> None:
        self._inner = inner
        self._authorization = (("authorization", f"Bearer {token}"),) if token else ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return _Method(
            method, self._inner.unary_unary(method, *args, **kwargs), self._authorization
        )

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return _Method(
            method, self._inner.unary_stream(method, *args, **kwargs), self._authorization
        )

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return _Method(
            method, self._inner.stream_unary(method, *args, **kwargs), self._authorization
        )

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return _Method(
            method, self._inner.stream_stream(method, *args, **kwargs), self._authorization
        )


class _Method:
    """One callable RPC method."""

    def __init__(self, name: str, call: Any, authorization: tuple[tuple[str, str], ...]) -> None:
        self._name = name
        self._call = call
        self._authorization = authorization

    def __call__(
        self, *args: Any, timeout: float | None = None, metadata: Any = None, **kwargs: Any
    ) -> Any:
        if timeout is None:
            raise ValueError(f"{self._name} was called without timeout=: every call has a deadline")
        headers: dict[str, str] = {}
        inject(headers)
        combined = (*(metadata or ()), *self._authorization, *headers.items())
        return self._call(*args, timeout=timeout, metadata=combined, **kwargs)
