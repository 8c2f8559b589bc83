"""`pagoda trace --jaeger` against a server that answers as Jaeger's query API does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import typer
from support.servers import free_port
from typer.testing import CliRunner

from pagoda_cli.trace.command import trace

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def tag(key: str, value: Any, kind: str = "string") -> dict[str, Any]:
    return {"key": key, "type": kind, "value": value}


TRACE = {
    "traceID": TRACE_ID,
    "spans": [
        {
            "traceID": TRACE_ID,
            "spanID": "a",
            "operationName": "gateway.request",
            "references": [],
            "startTime": 100_000_000,
            "duration": 100_000,
            "tags": [tag("pagoda.request_id", "01REQ"), tag("gen_ai.response.id", "chatcmpl-9")],
            "logs": [
                {"timestamp": 100_050_000, "fields": [tag("event", "x"), tag("n", 1, "int64")]}
            ],
            "processID": "p1",
        },
        {
            "traceID": TRACE_ID,
            "spanID": "b",
            "operationName": "decode.generate",
            "references": [{"refType": "CHILD_OF", "traceID": TRACE_ID, "spanID": "a"}],
            "startTime": 100_040_000,
            "duration": 59_000,
            "tags": [tag("pagoda.cached_tokens", 64, "int64"), tag("otel.status_code", "ERROR")],
            "logs": None,
            "processID": "p2",
        },
    ],
    "processes": {"p1": {"serviceName": "pagoda-gateway"}, "p2": {"serviceName": "pagoda-decode"}},
}
IDS = {"pagoda.request_id": "01REQ", "gen_ai.response.id": "chatcmpl-9"}


class QueryApi(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        status, traces = 200, []
        if url.path == "/api/traces":
            query = parse_qs(url.query)
            assert query["service"] == ["pagoda-gateway"]
            ((key, value),) = json.loads(query["tags"][0]).items()
            traces = [TRACE] if IDS.get(key) == value else []
        elif url.path == f"/api/traces/{TRACE_ID}":
            traces = [TRACE]
        else:
            status = 404
        body = json.dumps({"data": traces}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), QueryApi) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def run(url: str, *arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(trace)
    result = CliRunner().invoke(app, [*arguments, "--jaeger", url], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("request_id", ["01REQ", "chatcmpl-9", TRACE_ID])
def test_tree(url: str, request_id: str) -> None:
    code, output, errors = run(url, request_id)
    lines = output.splitlines()
    assert code == 0, errors
    assert lines[0] == f"request 01REQ, trace {TRACE_ID}, 2 spans, 100.0 ms"
    assert lines[3].split()[:4] == ["decode.generate", "decode", "40.00", "59.00"]
    assert "cached_tokens=64" in lines[3]


def test_json(url: str) -> None:
    root, generate = json.loads(run(url, "01REQ", "--json")[1])["spans"]
    assert root["events"] == [{"name": "x", "unix_seconds": 100.05, "attributes": {"n": 1}}]
    assert (root["status"], generate["status"]) == ("UNSET", "ERROR")
    assert generate["parent_span_id"] == "a"


@pytest.mark.parametrize("request_id", ["01NONE", "f" * 32])
def test_unknown_id_says_where_it_looked(url: str, request_id: str) -> None:
    code, output, errors = run(url, request_id, "--wait", "0")
    assert (code, output) == (1, "")
    assert f"no request '{request_id}' in Jaeger at {url.rstrip('/')}" in errors


def test_no_jaeger_is_said() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, _, errors = run(url, "01REQ", "--wait", "0")
    assert code == 1
    assert f"no Jaeger at {url}" in errors


@pytest.mark.parametrize("url", ["http://[::1", "http://h/ x", "ü"])
def test_what_is_no_url_is_no_jaeger(url: str) -> None:
    code, _, errors = run(url, "01REQ", "--wait", "0")
    assert code == 1
    assert f"no Jaeger at {url}" in errors
