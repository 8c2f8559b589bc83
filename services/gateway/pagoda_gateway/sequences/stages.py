"""Stages of a request as spans below its own; their names are in ARCHITECTURE.md."""

import contextlib
from collections.abc import Iterator

from opentelemetry.context import Context
from opentelemetry.trace import Span, set_span_in_context

from pagoda_runtime.telemetry.tracing import attached, tracer

_NOTHING = contextlib.nullcontext()


def stage_span(
    name: str, span: Span, context: Context, *, start_seconds: float | None = None
) -> contextlib.AbstractContextManager[None]:
    """Record a stage as the current span, below `span`, the one of `context`; if that is recorded.

    What ends it is noted in short on gateway.request; a recorded exception would hold the client's
    own values, and a traceback of any length.
    """
    if not span.is_recording():
        return _NOTHING
    return _recorded_stage(name, context, start_seconds)


@contextlib.contextmanager
def _recorded_stage(name: str, context: Context, start_seconds: float | None) -> Iterator[None]:
    start_time = None if start_seconds is None else unix_nanoseconds(start_seconds)
    span = tracer().start_span(name, context=context, start_time=start_time)
    try:
        with attached(set_span_in_context(span, context)):
            yield
    finally:
        span.end()


def unix_nanoseconds(unix_seconds: float) -> int:
    """Return a time as spans take it."""
    return int(unix_seconds * 1e9)
