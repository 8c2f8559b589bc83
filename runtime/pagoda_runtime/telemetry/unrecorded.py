"""Traces that nobody records: their ids still go from hop to hop, and into the logs.

By profile recorded spans are a tenth of a request to the gateway, even where nothing exports them.
"""

import random
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    get_current_span,
)
from opentelemetry.util.types import Attributes

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class UnrecordedTracer(NoOpTracer):
    """Makes spans that have ids and nothing else; other processes may record the same trace."""

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """Return a span below `context`'s, or the first of a trace."""
        parent, span_id = get_current_span(context).get_span_context(), random.getrandbits(64) or 1
        if not parent.is_valid:
            trace_id = random.getrandbits(128) or 1
            return NonRecordingSpan(SpanContext(trace_id, span_id, False, _SAMPLED))
        return NonRecordingSpan(
            SpanContext(parent.trace_id, span_id, False, parent.trace_flags, parent.trace_state)
        )
