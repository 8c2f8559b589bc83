"""Spans in a file, for running without a collector. The file rotates once.

Each line is an ExportTraceServiceRequest in OTLP's JSON form, as the OpenTelemetry collector's file
exporter writes it. Encoded here: protobuf's JSON takes eight times as long, in every process.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

MAX_FILE_BYTES = 64 << 20


class SpanFileExporter(SpanExporter):
    """Appends a line for each batch to `path`; past `max_bytes` the file moves to `*.1.jsonl`."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write and flush; called by the export thread only."""
        if not spans:
            return SpanExportResult.SUCCESS
        line = json.dumps(export_request(spans), separators=(",", ":")) + "\n"
        with self._lock:
            if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
                self._path.replace(self._path.with_suffix(".1.jsonl"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        return SpanExportResult.SUCCESS


def export_request(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Return spans of one tracer as an ExportTraceServiceRequest in OTLP's JSON form."""
    scope = spans[0].instrumentation_scope
    scope_spans = {
        "scope": {"name": scope.name if scope else ""},
        "spans": [_span(span) for span in spans],
    }
    resource = {"attributes": _attributes(spans[0].resource.attributes)}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope_spans]}]}


def _span(span: ReadableSpan) -> dict[str, Any]:
    record = {
        **_ids(span.get_span_context()),
        "name": span.name,
        "kind": span.kind.value + 1,  # OTLP has a kind 0, "unspecified"
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes),
        "events": [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "links": [
            _ids(link.context) | {"attributes": _attributes(link.attributes)} for link in span.links
        ],
        "status": {"code": span.status.status_code.value},
    }
    if span.parent is not None:
        record["parentSpanId"] = format_span_id(span.parent.span_id)
    if span.status.description:
        record["status"]["message"] = span.status.description
    return record


def _ids(context: SpanContext | None) -> dict[str, Any]:
    """Return the ids in hexadecimal: OTLP's JSON is not protobuf's base64 there."""
    if context is None:
        return {}
    return {
        "traceId": format_trace_id(context.trace_id),
        "spanId": format_span_id(context.span_id),
    }


def _attributes(attributes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):  # before int, which it is too
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits are more than JSON's numbers hold
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_value(item) for item in value]}}
