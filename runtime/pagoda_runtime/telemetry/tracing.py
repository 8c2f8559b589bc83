"""Traces of one process: where spans go and how their context crosses NATS and gRPC.

Spans go to an OTLP collector if OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT) is set, to
files if `trace_dir` is set, or to both; without either a span is its ids alone. The provider is not
made global, so that libraries do not add spans of their own. An unreachable collector never blocks
a request, and shutdown waits for it a second at most.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, NoOpTracer, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import SettingsError
from pagoda_runtime.needed import needed_folder
from pagoda_runtime.telemetry.span_file import SpanFileExporter
from pagoda_runtime.telemetry.unrecorded import UnrecordedTracer

OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""The first one that is set counts."""
EXPORT_DELAY_MS = 1000  # an idle process is woken as often
SHUTDOWN_SECONDS = 0.8
MAX_QUEUED_SPANS = 16384

_propagator = TraceContextTextMapPropagator()


class _State:
    """The process's one provider; None until `setup_telemetry`."""

    provider: TracerProvider | None = None
    tracer: Tracer = NoOpTracer()
    otlp: SpanExporter | None = None


def setup_telemetry(service: str, common: CommonSettings, *, instance_id: str) -> None:
    """Start exporting spans of this process; replaces an earlier set-up.

    Raises:
        StartError: the folder of spans cannot be made.
        SettingsError: spans are to go in a way that they cannot.
    """
    shutdown_telemetry()
    has_otlp = _has_otlp()
    if common.trace_dir is None and not has_otlp:
        _State.tracer = UnrecordedTracer()
        return
    resource = Resource.create(
        {"service.name": f"pagoda-{service}", "service.instance.id": instance_id}
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if common.trace_dir is not None:
        path = common.trace_dir / f"{service}-{instance_id}.jsonl"
        with needed_folder(common.trace_dir, "PAGODA_TRACE_DIR"):
            exporter = SpanFileExporter(path)
        _add(provider, exporter)
    if has_otlp:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        _State.otlp = OTLPSpanExporter()
        _add(provider, _State.otlp)
    _State.provider = provider
    _State.tracer = provider.get_tracer("pagoda")


def _has_otlp() -> bool:
    """Tell whether spans go to a collector.

    Raises:
        SettingsError: by what this process does not speak.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    endpoint = next((name for name in OTLP_VARIABLES if os.environ.get(name)), "")
    if exporter == "none" or not endpoint:
        return False
    if exporter not in ("otlp", "otlp_proto_grpc"):  # two names of one
        problem = (
            f"OTEL_TRACES_EXPORTER is {exporter!r}; beside {endpoint} it must be otlp, none or "
            "empty"
        )
        raise SettingsError([problem])
    name = next((name for name in _PROTOCOL_VARIABLES if os.environ.get(name)), "")
    if name and (protocol := os.environ[name]) != "grpc":
        problem = (
            f"{name} is {protocol!r}; spans are sent by grpc alone. Leave it out, and name the "
            f"collector's port for grpc (4317, as a rule) in {OTLP_VARIABLES[0]}"
        )
        raise SettingsError([problem])
    return True


def shutdown_telemetry() -> None:
    """Export what is queued and stop; takes about a second at most."""
    provider, otlp = _State.provider, _State.otlp
    _State.provider, _State.tracer, _State.otlp = None, NoOpTracer(), None
    if provider is None:
        return
    timer = threading.Timer(SHUTDOWN_SECONDS, _abandon, [otlp])
    timer.daemon = True
    timer.start()
    provider.shutdown()
    timer.cancel()


def tracer() -> Tracer:
    """Return the process's tracer; it records nothing before `setup_telemetry`."""
    return _State.tracer


def inject(headers: dict[str, str], context: Context | None = None) -> None:
    """Write the trace context (None: the current one) into `headers`, as W3C's two headers.

    A hop of every token's request does: the library's propagator takes six times as long.
    """
    # Its attributes are calls; it is a tuple.
    trace_id, span_id, _, flags, state, is_valid = get_current_span(context).get_span_context()
    if not is_valid:
        return
    headers["traceparent"] = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    if state:
        headers["tracestate"] = state.to_header()


def extract(headers: Mapping[str, str] | None) -> Context:
    """Return the trace context that `headers` carry; an empty one if none."""
    if not headers:
        return Context()
    return _propagator.extract(headers, Context())


class attached:
    """Make `context` the current one, so that spans and log lines inside belong to it."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = attach(self._context)

    def __exit__(self, *_: object) -> None:
        detach(self._token)


def record_span(
    name: str,
    *,
    context: Context | None = None,
    start_seconds: float,
    end_seconds: float,
    attributes: Mapping[str, AttributeValue] | None = None,
    links: Sequence[Link] = (),
) -> None:
    """Record a stage that was measured elsewhere, as a child of `context`'s span.

    Args:
        name: the span's name.
        context: None: the current one.
        start_seconds: Unix time.
        end_seconds: Unix time, not before the start.
        attributes: of the span.
        links: to spans of other traces.
    """
    span = tracer().start_span(
        name,
        context=get_current() if context is None else context,
        attributes=attributes,
        links=links,
        start_time=int(start_seconds * 1e9),
    )
    span.end(end_time=int(max(start_seconds, end_seconds) * 1e9))


def _add(provider: TracerProvider, exporter: SpanExporter) -> None:
    processor = BatchSpanProcessor(
        exporter, max_queue_size=MAX_QUEUED_SPANS, schedule_delay_millis=EXPORT_DELAY_MS
    )
    provider.add_span_processor(processor)


def _abandon(exporter: SpanExporter | None) -> None:
    """Make an exporter that hangs on its collector give up, so that shutdown returns."""
    if exporter is not None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        exporter.shutdown()
