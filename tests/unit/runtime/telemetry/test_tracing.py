import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from support.otlp_sink import otlp_sink
from support.servers import free_port
from support.span_files import parse_line, read_spans

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import SettingsError
from pagoda_runtime.telemetry.span_file import SpanFileExporter
from pagoda_runtime.telemetry.tracing import (
    OTLP_VARIABLES,
    attached,
    extract,
    inject,
    record_span,
    setup_telemetry,
    shutdown_telemetry,
    tracer,
)


@pytest.fixture(autouse=True)
def _no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    yield
    shutdown_telemetry()


def test_a_context_is_written_as_the_library_writes_it() -> None:
    state = trace.TraceState([("vendor", "x"), ("other", "y")])
    for trace_id, span_id, flags, kept in ((1, 2, 0, None), (2**127 + 5, 2**63 + 9, 1, state)):
        parent = trace.SpanContext(trace_id, span_id, True, trace.TraceFlags(flags), kept)
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        ours: dict[str, str] = {}
        theirs: dict[str, str] = {}
        inject(ours, context)
        TraceContextTextMapPropagator().inject(theirs, context)
        assert ours == theirs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ],
)
def test_a_way_that_spans_cannot_go_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name} is '{value}'"):
        setup_telemetry("test", CommonSettings(home=tmp_path), instance_id="test-1")


@pytest.mark.parametrize("exporter", ["console", "zipkin", "otlp,console"])
def test_where_no_collector_is_named_an_exporter_means_nothing(
    monkeypatch: pytest.MonkeyPatch, exporter: str
) -> None:
    for name in OTLP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter)
    setup_telemetry("test", CommonSettings(), instance_id="test-1")
    with tracer().start_as_current_span("a") as span:
        assert not span.is_recording()
    shutdown_telemetry()


def test_what_is_said_of_traces_counts_before_what_is_said_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp_proto_grpc")
        setup_telemetry("test", CommonSettings(), instance_id="test-1")
        with tracer().start_as_current_span("a"):
            pass
        shutdown_telemetry()
        assert [span.name for span in sink.spans] == ["a"]


def test_an_exporter_that_is_none_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
        setup_telemetry("test", CommonSettings(), instance_id="test-1")
        with tracer().start_as_current_span("a"):
            pass
        shutdown_telemetry()
    assert not sink.spans


def test_without_set_up_nothing_is_recorded() -> None:
    headers: dict[str, str] = {}
    with tracer().start_as_current_span("a"):
        inject(headers)

    assert headers == {}
    assert extract(None) == extract({}) == Context()


def test_context_survives_headers(tmp_path: Path) -> None:
    setup_telemetry("gateway", CommonSettings(trace_dir=tmp_path), instance_id="g1")
    headers: dict[str, str] = {}
    with tracer().start_as_current_span("a") as span:
        inject(headers)

    context = extract(headers)

    assert trace.get_current_span(context).get_span_context().trace_id == (
        span.get_span_context().trace_id
    )


def test_spans_go_to_a_file(tmp_path: Path) -> None:
    setup_telemetry("gateway", CommonSettings(trace_dir=tmp_path), instance_id="g1")
    with tracer().start_as_current_span("parent", attributes={"n": 1, "list": [1, 2]}) as parent:
        parent.add_event("happened", {"x": "y"})
        record_span("child", start_seconds=100.0, end_seconds=101.5, attributes={"k": "v"})
    shutdown_telemetry()

    spans = {span["name"]: span for span in read_spans(tmp_path)}
    assert (tmp_path / "gateway-g1.jsonl").is_file()
    assert spans["child"]["trace_id"] == spans["parent"]["trace_id"]
    assert spans["child"]["parent_span_id"] == spans["parent"]["span_id"]
    assert spans["parent"]["parent_span_id"] == ""
    assert spans["child"]["end_unix_seconds"] == 101.5
    assert spans["parent"]["attributes"] == {"n": 1, "list": [1, 2]}
    assert spans["parent"]["events"][0]["name"] == "happened"
    assert spans["parent"]["service"] == "gateway"


def test_a_line_is_what_opentelemetry_encodes(tmp_path: Path) -> None:
    exporter, memory = SpanFileExporter(tmp_path / "s.jsonl"), InMemorySpanExporter()
    provider = TracerProvider(
        resource=Resource({"service.name": "pagoda-router"}), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    values = {"text": "é", "flag": True, "count": 1 << 40, "ratio": 0.5, "list": ["a", "b"]}
    linked = trace.get_current_span(
        extract({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    )
    with provider.get_tracer("pagoda").start_as_current_span(
        "a", attributes=values, links=[trace.Link(linked.get_span_context(), {"n": 1})]
    ) as span:
        span.add_event("happened", {"x": 1.5})
        provider.get_tracer("pagoda").start_span("b").end()
        span.set_status(trace.StatusCode.ERROR, "it broke")

    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    for line, expected in zip(lines, memory.get_finished_spans(), strict=True):
        message = encode_spans([expected])
        for encoded in message.resource_spans[0].scope_spans[0].spans:
            encoded.flags = 0  # optional, and of no use to a reader of files
            for link in encoded.links:
                link.flags = 0
        assert parse_line(line) == message


def test_record_span_takes_the_context_given(tmp_path: Path) -> None:
    setup_telemetry("decode", CommonSettings(trace_dir=tmp_path), instance_id="d1")
    context = extract({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    link = trace.Link(trace.get_current_span(context).get_span_context())
    record_span("decode.queue", context=context, start_seconds=1.0, end_seconds=0.5, links=[link])
    shutdown_telemetry()

    (span,) = read_spans(tmp_path)
    assert (span["trace_id"], span["parent_span_id"]) == ("a" * 32, "b" * 16)
    assert span["end_unix_seconds"] == 1.0  # never before its start
    assert span["links"] == [{"trace_id": "a" * 32, "span_id": "b" * 16}]


def test_attached_makes_the_context_current() -> None:
    context = extract({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    with attached(context):
        assert trace.get_current_span().get_span_context().span_id == int("b" * 16, 16)
    assert not trace.get_current_span().get_span_context().is_valid


def test_the_file_rotates_once(tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    exporter = SpanFileExporter(tmp_path / "s.jsonl", max_bytes=4000)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for _ in range(100):
        provider.get_tracer("t").start_span("x").end()

    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.1.jsonl", "s.jsonl"]
    assert max(sizes) <= 4000


def test_spans_go_to_a_collector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        setup_telemetry("router", CommonSettings(trace_dir=tmp_path), instance_id="r1")
        with tracer().start_as_current_span("router.route", attributes={"k": 2}):
            pass

        (span,) = sink.wait_for(lambda spans: len(spans) == 1)
        assert (span.name, span.service, span.attributes) == (
            "router.route",
            "pagoda-router",
            {"k": 2},
        )
        shutdown_telemetry()
    assert len(read_spans(tmp_path)) == 1  # both at once


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("collector", ["refusing", "silent"])
def test_a_dead_collector_delays_nothing(
    collector: str, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = silent_port if collector == "silent" else free_port()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    setup_telemetry("router", CommonSettings(), instance_id="r1")
    start = time.monotonic()
    for _ in range(1000):
        tracer().start_span("x").end()
    assert time.monotonic() - start < 1.0

    start = time.monotonic()
    shutdown_telemetry()
    assert time.monotonic() - start < 2.0
