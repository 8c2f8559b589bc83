"""One span of a request, and how it is read from a line of a span file.

A line is an ExportTraceServiceRequest in OTLP's JSON form; any file that the OpenTelemetry
collector's file exporter wrote will do. Knows no folder and no terminal.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

_STATUS_NAMES = {0: "UNSET", 1: "OK", 2: "ERROR"}


@dataclass(frozen=True, slots=True)
class Span:
    """One span as its service wrote it. Times are Unix seconds."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    service: str
    start: float
    end: float
    attributes: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    status: str

    def as_record(self) -> dict[str, Any]:
        """Return what `--json` shows."""
        return {
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "parent_span_id": self.parent_span_id,
            "name": self.name,
            "service": self.service,
            "start_unix_seconds": self.start,
            "end_unix_seconds": self.end,
            "attributes": self.attributes,
            "events": list(self.events),
            "status": self.status,
        }


def read_line(line: bytes) -> Iterator[Span]:
    """Yield the spans of one line.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none of ours.
    """
    for resource_spans in orjson.loads(line)["resourceSpans"]:
        resource = _attributes(resource_spans.get("resource", {}).get("attributes", ()))
        service = str(resource.get("service.name", "")).removeprefix("pagoda-")
        for scope_spans in resource_spans["scopeSpans"]:
            for record in scope_spans["spans"]:
                yield _span(record, service)


def _span(record: dict[str, Any], service: str) -> Span:
    return Span(
        trace_id=record["traceId"],
        span_id=record["spanId"],
        parent_span_id=record.get("parentSpanId", ""),
        name=record["name"],
        service=service,
        start=int(record["startTimeUnixNano"]) / 1e9,
        end=int(record["endTimeUnixNano"]) / 1e9,
        attributes=_attributes(record.get("attributes", ())),
        events=tuple(
            {
                "name": event["name"],
                "unix_seconds": int(event["timeUnixNano"]) / 1e9,
                "attributes": _attributes(event.get("attributes", ())),
            }
            for event in record.get("events", ())
        ),
        status=_STATUS_NAMES.get(record.get("status", {}).get("code", 0), ""),
    )


def _attributes(pairs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [_value(item) for item in content.get("values", ())]
    return content
