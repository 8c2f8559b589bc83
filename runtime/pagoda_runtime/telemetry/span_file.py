"""Spans in a file, for running without a collector. The file rotates once.

Each line is an ExportTraceServiceRequest in OTLP's JSON form, as the OpenTelemetry collector's file
exporter writes it. Encoded here: protobuf's JSON takes eight times as long, in every process.
"""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 << 20


class SpanFileExporter(SpanExporter):
    """Appends a line for each batch to `path`; past `max_bytes` the file moves to `*.1.jsonl`.

    What cannot be written is lost, and logged once until something can be written again.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write and flush; called by the export thread only. No error of the disk is raised."""
        if not spans:
            return SpanExportResult.SUCCESS
        line = json.dumps(export_request(spans), separators=(",", ":")) + "\n"
        with self._lock:
            try:
                self._write(line.encode())
            except OSError as error:
                self._note_failure(error)
                return SpanExportResult.FAILURE
            self._note_success()
        return SpanExportResult.SUCCESS

    def _write(self, line: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)  # it may have been removed
        if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
            self._path.replace(self._path.with_suffix(".1.jsonl"))
        with FileIO(self._path, "a+") as file:
            _append(file, line)

    def _note_failure(self, error: OSError) -> None:
        if not self._is_failing:
            logger.warning(
                "spans are lost, as %s cannot be written (%s): make room, or set PAGODA_TRACE_DIR "
                "to another folder",
                self._path, error.strerror or error,
            )  # fmt: skip
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            logger.info("spans are written to %s again", self._path)
        self._is_failing = False


def _append(file: FileIO, line: bytes) -> None:
    """Write the whole line, or nothing of it.

    Raises:
        OSError: it cannot be written. If not even its beginning can be taken back, the next line
            does not go on from that.
    """
    begin = file.seek(0, os.SEEK_END)
    if begin:
        file.seek(begin - 1)
        if file.read(1) != b"\n":
            line = b"\n" + line
    try:
        while line:
            line = line[file.write(line) :]  # a disk that gets full takes a part
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(begin)
        raise


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
