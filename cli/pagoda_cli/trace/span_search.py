"""Finds the spans of one request among the span files of a stack (`$PAGODA_HOME/traces/*.jsonl`).

Knows the file format of `pagoda_runtime.telemetry.span_file`. Knows no terminal.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

ROOT_NAME = "gateway.request"
_ID_ATTRIBUTES = ("pagoda.request_id", "gen_ai.response.id")
# Every service writes its spans within a second of their end; more than that brings nothing new.
FLUSH_SECONDS = 1.5
_POLL_SECONDS = 0.1


class TraceNotFoundError(Exception):
    """No span of that request was written in time; the message says where was looked."""


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

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Span":
        """Read one line's object.

        Raises:
            KeyError: it is not a span.
        """
        return cls(
            trace_id=record["trace_id"],
            span_id=record["span_id"],
            parent_span_id=record["parent_span_id"] or "",
            name=record["name"],
            service=record.get("service", ""),
            start=float(record["start_unix_seconds"]),
            end=float(record["end_unix_seconds"]),
            attributes=record.get("attributes") or {},
            events=tuple(record.get("events") or ()),
            status=record.get("status", ""),
        )

    def as_record(self) -> dict[str, Any]:
        """Return the line's object again."""
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


def find_request(
    folder: Path,
    request_id: str,
    *,
    wait_seconds: float,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Span]:
    """Return the spans of the request, by start; waits for spans that may still be on their way.

    `request_id` is an x-request-id, the id of an OpenAI object or a trace id.

    Raises:
        TraceNotFoundError: none after `wait_seconds`.
    """
    deadline = clock() + wait_seconds
    while (root := _find_root(folder, request_id)) is None:
        if clock() >= deadline:
            raise TraceNotFoundError(_not_found(folder, request_id))
        sleep(_POLL_SECONDS)
    # Other services may still be writing: look again until the last flush must have happened.
    missing_seconds = min(root.end + FLUSH_SECONDS, deadline) - clock()
    if missing_seconds > 0:
        sleep(missing_seconds)
    found = _spans(folder, root.trace_id)  # also those of other traces that have a link to this one
    spans = {span.span_id: span for span in found if span.trace_id == root.trace_id}
    return sorted(spans.values(), key=lambda span: (span.start, span.end))


def _find_root(folder: Path, request_id: str) -> Span | None:
    # The newest wins: an x-request-id that a client sent may come twice.
    newest: Span | None = None
    for span in _spans(folder, request_id):
        if span.name != ROOT_NAME or not _is_named(span, request_id):
            continue
        if newest is None or span.start > newest.start:
            newest = span
    return newest


def _is_named(span: Span, request_id: str) -> bool:
    ids = {str(span.attributes.get(name, "")) for name in _ID_ATTRIBUTES} | {span.trace_id}
    return request_id in ids


def _spans(folder: Path, needle: str) -> Iterator[Span]:
    """Yield the spans whose line contains `needle`; parses no other line."""
    wanted = needle.encode()
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                # A line without its end is still being written.
                if wanted in line and line.endswith(b"\n"):
                    try:
                        yield Span.from_record(orjson.loads(line))
                    except (ValueError, KeyError, TypeError):
                        continue


def _not_found(folder: Path, request_id: str) -> str:
    if not folder.is_dir():
        return (
            f"no span files: {folder} does not exist. Is PAGODA_HOME the one of the running stack "
            "(--home)? A stack that sends spans to a collector has them there instead"
        )
    num_files = len(list(folder.glob("*.jsonl")))
    return (
        f"no request {request_id!r} in the {num_files} span files of {folder}. It is written "
        "when it ends, and old spans go when a file has rotated twice"
    )
