"""Finds the spans of one request among the span files of a stack (`$PAGODA_HOME/traces/*.jsonl`).

Knows which lines to look at; what is in a line is `span`'s business. Knows no terminal.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pagoda_cli.trace.span import Span, read_line

ROOT_NAME = "gateway.request"
_ID_ATTRIBUTES = ("pagoda.request_id", "gen_ai.response.id")
# Every service writes its spans within a second of their end; more than that brings nothing new.
FLUSH_SECONDS = 1.5
_POLL_SECONDS = 0.1


class TraceNotFoundError(Exception):
    """No span of that request was written in time; the message says where was looked."""


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
    found = _spans(folder, root.trace_id)  # and others of the same lines
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
    """Yield the spans of the lines that contain `needle`; parses no other line."""
    wanted = needle.encode()
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                # A line without its end is still being written.
                if wanted in line and line.endswith(b"\n"):
                    try:
                        yield from read_line(line)
                    except (ValueError, KeyError, TypeError, AttributeError):
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
