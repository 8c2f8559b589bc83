"""Spans that a collector sent to Jaeger, from the HTTP API that Jaeger's own page reads.

Jaeger finds what ended within the last two days. Lists among the attributes come back as JSON text.
"""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import orjson

from pagoda_cli.trace.span import Span
from pagoda_cli.trace.span_search import ID_ATTRIBUTES, ROOT_SERVICE, TraceNotFoundError

ANSWER_SECONDS = 10.0


class Jaeger:
    """A SpanSource over Jaeger's query API at `url`, e.g. http://127.0.0.1:16686."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def spans(self, needle: str) -> list[Span]:
        """Return the spans of the traces of that request or trace id.

        Raises:
            TraceNotFoundError: Jaeger does not answer as Jaeger does.
        """
        searches = [
            {"service": f"pagoda-{ROOT_SERVICE}", "tags": orjson.dumps({name: needle}).decode()}
            for name in ID_ATTRIBUTES
        ]
        paths = [f"traces?{urllib.parse.urlencode(search)}" for search in searches]
        if len(needle) == 32:
            paths.insert(0, f"traces/{urllib.parse.quote(needle)}")
        for path in paths:
            if traces := self._ask(path):
                return [
                    _span(span, trace["processes"]) for trace in traces for span in trace["spans"]
                ]
        return []

    def not_found(self, request_id: str) -> str:
        """Return where was looked."""
        return (
            f"no request {request_id!r} in Jaeger at {self._url}. It is sent when it ends; "
            "does the stack send spans there (OTEL_EXPORTER_OTLP_ENDPOINT)?"
        )

    def _ask(self, path: str) -> list[dict[str, Any]]:
        try:
            with urllib.request.urlopen(
                f"{self._url}/api/{path}", timeout=ANSWER_SECONDS
            ) as answer:
                traces: list[dict[str, Any]] = orjson.loads(answer.read())["data"]
                return traces
        except urllib.error.HTTPError as error:
            if error.code in (400, 404):  # no trace id after all, or not there
                error.close()
                return []
            raise TraceNotFoundError(f"Jaeger at {self._url} failed: {error}") from error
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            raise TraceNotFoundError(f"no Jaeger at {self._url}: {error}") from error


def _span(record: dict[str, Any], processes: dict[str, Any]) -> Span:
    attributes = _attributes(record["tags"])
    parents = [link["spanID"] for link in record["references"] if link["refType"] == "CHILD_OF"]
    start = record["startTime"] / 1e6
    return Span(
        trace_id=record["traceID"],
        span_id=record["spanID"],
        parent_span_id=parents[0] if parents else "",
        name=record["operationName"],
        service=processes[record["processID"]]["serviceName"].removeprefix("pagoda-"),
        start=start,
        end=start + record["duration"] / 1e6,
        attributes=attributes,
        events=tuple(_event(log) for log in record["logs"] or ()),
        status=str(attributes.get("otel.status_code", "UNSET")),
    )


def _event(log: dict[str, Any]) -> dict[str, Any]:
    attributes = _attributes(log["fields"])
    name = attributes.pop("event", "")
    return {"name": name, "unix_seconds": log["timestamp"] / 1e6, "attributes": attributes}


def _attributes(tags: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in tags or ()}
