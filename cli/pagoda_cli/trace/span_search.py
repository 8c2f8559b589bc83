"""Finds the spans of one request where spans are kept, and waits for those on their way.

Knows how a request is named. Knows no file, no network and no terminal.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pagoda_cli.trace.span import Span

ROOT_SERVICE, ROOT_NAME = "gateway", "gateway.request"
ID_ATTRIBUTES = ("pagoda.request_id", "pagoda.client_request_id", "gen_ai.response.id")
# Every service writes its spans within a second of their end; more than that brings nothing new.
FLUSH_SECONDS = 1.5
_POLL_SECONDS = 0.1


class TraceNotFoundError(Exception):
    """No span of that request was written in time; the message says where was looked."""


class SpanSource(Protocol):
    """Where spans are kept."""

    def spans(self, needle: str) -> Iterable[Span]:
        """Return at least the spans that `needle`, an id of a request or trace, stands in."""
        ...

    def not_found(self, request_id: str) -> str:
        """Return where was looked, and why the request may not be there."""
        ...


def find_request(
    source: SpanSource,
    request_id: str,
    *,
    wait_seconds: float,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Span]:
    """Return the spans of the request, by start; waits for spans that may still be on their way.

    `request_id` is an x-request-id, the id of an OpenAI object or a trace id. A trace may be a
    client's own, with several requests in it: one of an id has none of the others' spans.

    Raises:
        TraceNotFoundError: none after `wait_seconds`.
    """
    deadline = clock() + wait_seconds
    while (root := _find_root(source, request_id)) is None:
        if clock() >= deadline:
            raise TraceNotFoundError(source.not_found(request_id))
        sleep(_POLL_SECONDS)
    # Other services may still be writing: look again until the last flush must have happened.
    missing_seconds = min(root.end + FLUSH_SECONDS, deadline) - clock()
    if missing_seconds > 0:
        sleep(missing_seconds)
    found = source.spans(root.trace_id)  # and maybe others
    spans = {span.span_id: span for span in found if span.trace_id == root.trace_id}
    if request_id != root.trace_id:
        spans = {key: span for key, span in spans.items() if not _is_of_another(span, root, spans)}
    return sorted(spans.values(), key=lambda span: (span.start, span.end))


def _find_root(source: SpanSource, request_id: str) -> Span | None:
    # The newest wins: an x-request-id that a client sent may come twice.
    newest: Span | None = None
    for span in source.spans(request_id):
        if span.name != ROOT_NAME or not _is_named(span, request_id):
            continue
        if newest is None or span.start > newest.start:
            newest = span
    return newest


def _is_of_another(span: Span, root: Span, spans: Mapping[str, Span]) -> bool:
    """Tell whether a span hangs on another request than that of `root`, or names another."""
    for _ in spans:  # and no further: a damaged file may have a circle
        if span.name == ROOT_NAME:
            return span.span_id != root.span_id
        if span.parent_span_id not in spans:
            break
        span = spans[span.parent_span_id]
    ids = [each.attributes.get(ID_ATTRIBUTES[0]) for each in (span, root)]
    return ids[0] is not None and ids[0] != ids[1]


def _is_named(span: Span, request_id: str) -> bool:
    ids = {str(span.attributes.get(name, "")) for name in ID_ATTRIBUTES} | {span.trace_id}
    return request_id in ids
