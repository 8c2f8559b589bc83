"""Traces that nobody records have ids all the same."""

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.telemetry.tracing import extract, inject, setup_telemetry, shutdown_telemetry
from pagoda_runtime.telemetry.tracing import tracer as process_tracer
from pagoda_runtime.telemetry.unrecorded import UnrecordedTracer

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_begins_with_new_ids_that_others_may_record() -> None:
    tracer = UnrecordedTracer()
    spans = [tracer.start_span("a", Context()).get_span_context() for _ in range(2)]

    assert all(span.is_valid and span.trace_flags.sampled for span in spans)
    assert spans[0].trace_id != spans[1].trace_id
    assert not tracer.start_span("a", Context()).is_recording()


def test_a_clients_trace_goes_on_to_the_next_hop() -> None:
    context = extract({"traceparent": TRACEPARENT})
    span = UnrecordedTracer().start_span("a", context)
    headers: dict[str, str] = {}
    inject(headers, set_span_in_context(span, context))
    version, trace_id, span_id, flags = headers["traceparent"].split("-")

    assert (version, trace_id, flags) == ("00", TRACEPARENT.split("-")[1], "01")
    assert span_id != TRACEPARENT.split("-")[2]


def test_what_a_clients_tracer_adds_goes_along() -> None:
    sent = {"traceparent": TRACEPARENT, "tracestate": "vendor=1,other=2"}
    headers: dict[str, str] = {}
    inject(headers, extract(sent))

    assert headers == sent


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    parent = NonRecordingSpan(SpanContext(1, 2, True, TraceFlags(TraceFlags.DEFAULT)))
    span = UnrecordedTracer().start_span("a", set_span_in_context(parent, Context()))

    assert span.get_span_context().trace_id == 1
    assert not span.get_span_context().trace_flags.sampled


def test_a_process_without_an_exporter_records_nothing() -> None:
    setup_telemetry("gateway", CommonSettings(trace_dir=None), instance_id="g1")
    try:
        span = process_tracer().start_span("a", Context())
        assert not span.is_recording()
        assert span.get_span_context().is_valid
    finally:
        shutdown_telemetry()
