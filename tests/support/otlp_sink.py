"""An OTLP collector in the test process: takes spans over gRPC and keeps them.

with otlp_sink() as sink:
    environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = sink.endpoint
    ...
    spans = sink.wait_for(lambda spans: len(spans) >= 3)
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class SinkSpan:
    """One span as it arrived; ids are hexadecimal, times Unix seconds."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    service: str
    start_unix_seconds: float
    end_unix_seconds: float
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]  # (trace id, span id)


class OtlpSink(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span it is sent."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._spans: list[SinkSpan] = []
        self._changed = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:
        spans = [
            _span(span, resource_spans.resource)
            for resource_spans in request.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]
        with self._changed:
            self._spans += spans
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[SinkSpan]:
        """What has arrived so far."""
        with self._changed:
            return list(self._spans)

    def wait_for(
        self, is_enough: Callable[[list[SinkSpan]], bool], timeout_seconds: float = 60.0
    ) -> list[SinkSpan]:
        """Return the spans once `is_enough` says so; fails after the timeout."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: is_enough(self._spans), timeout_seconds)
            assert arrived, f"not enough spans: {sorted(span.name for span in self._spans)}"
            return list(self._spans)


@contextlib.contextmanager
def otlp_sink() -> Iterator[OtlpSink]:
    """Run a sink on a free loopback port."""
    sink = OtlpSink()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(sink, server)
    sink.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield sink
    finally:
        server.stop(0).wait()


def _span(span: Any, resource: Any) -> SinkSpan:
    return SinkSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        name=span.name,
        service=_attributes(resource.attributes).get("service.name", ""),
        start_unix_seconds=span.start_time_unix_nano / 1e9,
        end_unix_seconds=span.end_time_unix_nano / 1e9,
        attributes=_attributes(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
