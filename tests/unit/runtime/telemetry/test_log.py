import json
import logging

from pagoda_runtime.telemetry.log import JsonFormatter
from pagoda_runtime.telemetry.tracing import attached, extract


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("pagoda.x", logging.INFO, __file__, 1, message, None, None)


def test_a_line_is_one_json_object() -> None:
    line = json.loads(JsonFormatter("router", "router-1").format(record("hello\nworld")))

    assert line["message"] == "hello\nworld"
    assert (line["service"], line["instance"], line["level"]) == ("router", "router-1", "INFO")
    assert "trace_id" not in line


def test_a_line_names_its_trace() -> None:
    context = extract({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    with attached(context):
        line = json.loads(JsonFormatter("router", "router-1").format(record("hello")))

    assert (line["trace_id"], line["span_id"]) == ("a" * 32, "b" * 16)
