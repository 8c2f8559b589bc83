"""Span files in tests: read through OpenTelemetry's own schema, written from flat records."""

import base64
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_IDS = re.compile(r'"(traceId|spanId|parentSpanId)":"([0-9a-f]+)"')


def parse_line(line: str) -> ExportTraceServiceRequest:
    """Return a line's message; protobuf's JSON wants base64 where OTLP's has hexadecimal."""

    def encode(match: re.Match[str]) -> str:
        return f'"{match[1]}":"{base64.b64encode(bytes.fromhex(match[2])).decode()}"'

    return json_format.Parse(_IDS.sub(encode, line), ExportTraceServiceRequest())


def read_spans(folder: Path) -> list[dict[str, Any]]:
    """Return all spans of a folder as flat records."""
    return [
        _record(span, _attributes(resource_spans.resource.attributes)["service.name"])
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        for resource_spans in parse_line(line).resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


def write_line(records: Iterable[dict[str, Any]]) -> str:
    """Return the line that holds these flat records, one resource each."""
    return json.dumps({"resourceSpans": [_resource_spans(record) for record in records]}) + "\n"


def _record(span: Any, service: str) -> dict[str, Any]:
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_span_id": span.parent_span_id.hex(),
        "name": span.name,
        "service": service.removeprefix("pagoda-"),
        "start_unix_seconds": span.start_time_unix_nano / 1e9,
        "end_unix_seconds": span.end_time_unix_nano / 1e9,
        "attributes": _attributes(span.attributes),
        "events": [
            {
                "name": event.name,
                "unix_seconds": event.time_unix_nano / 1e9,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "links": [
            {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()} for link in span.links
        ],
    }


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    content = getattr(value, kind)
    return [_plain(item) for item in content.values] if kind == "array_value" else content


def _resource_spans(record: dict[str, Any]) -> dict[str, Any]:
    span = {
        "traceId": record["trace_id"],
        "spanId": record["span_id"],
        "parentSpanId": record["parent_span_id"],
        "name": record["name"],
        "startTimeUnixNano": str(round(record["start_unix_seconds"] * 1e9)),
        "endTimeUnixNano": str(round(record["end_unix_seconds"] * 1e9)),
        "attributes": _pairs(record["attributes"]),
        "status": {},
    }
    resource = {"attributes": _pairs({"service.name": f"pagoda-{record['service']}"})}
    return {"resource": resource, "scopeSpans": [{"spans": [span]}]}


def _pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in attributes.items()
    ]
