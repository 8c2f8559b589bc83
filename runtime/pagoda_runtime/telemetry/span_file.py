"""Spans as JSON lines in a file, for running without a collector. The file rotates once."""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id

MAX_FILE_BYTES = 64 << 20


class SpanFileExporter(SpanExporter):
    """Appends a line for each span to `path`; past `max_bytes` the file moves to `*.1.jsonl`."""

    def __init__(self, path: Path, service: str, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._service = service
        self._max_bytes = max_bytes
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write and flush; called by the export thread only."""
        lines = "".join(json.dumps(span_record(span, self._service)) + "\n" for span in spans)
        with self._lock:
            if self._path.exists() and self._path.stat().st_size + len(lines) > self._max_bytes:
                self._path.replace(self._path.with_suffix(".1.jsonl"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)
        return SpanExportResult.SUCCESS


def span_record(span: ReadableSpan, service: str) -> dict[str, Any]:
    """Return a span as plain values; times are Unix seconds."""
    context = span.get_span_context()
    return {
        "trace_id": format_trace_id(context.trace_id) if context else "",
        "span_id": format_span_id(context.span_id) if context else "",
        "parent_span_id": format_span_id(span.parent.span_id) if span.parent else "",
        "name": span.name,
        "service": service,
        "start_unix_seconds": (span.start_time or 0) / 1e9,
        "end_unix_seconds": (span.end_time or 0) / 1e9,
        "attributes": _plain(span.attributes),
        "events": [
            {
                "name": event.name,
                "unix_seconds": event.timestamp / 1e9,
                "attributes": _plain(event.attributes),
            }
            for event in span.events
        ],
        "links": [
            {
                "trace_id": format_trace_id(link.context.trace_id),
                "span_id": format_span_id(link.context.span_id),
            }
            for link in span.links
        ],
        "status": span.status.status_code.name,
    }


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in (attributes or {}).items()
    }
