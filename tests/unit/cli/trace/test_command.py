"""`pagoda trace` over span files written by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from support.span_files import write_line
from typer.testing import CliRunner

from pagoda_cli.trace.command import trace
from pagoda_cli.trace.span_files import SpanFiles
from pagoda_cli.trace.span_search import TraceNotFoundError, find_request
from pagoda_cli.trace.span_tree import _CANDIDATE_COLUMNS, bar, walk
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.telemetry.tracing import (
    record_span,
    setup_telemetry,
    shutdown_telemetry,
    tracer,
)

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
LONG_WORKER = "prefill-" + "0123456789" * 3
PLANS = [
    {
        "decode": "decode-1",
        "prefill": LONG_WORKER,
        "miss_tokens": 12,
        "ttft_ms": 20.5,
        "cost_ms": 21.0,
    },
    {"decode": "decode-2", "prefill": "", "reason": "queue is full"},
]


def span(
    name: str, span_id: str, parent: str, start: float, end: float, **more: Any
) -> dict[str, Any]:
    service = more.pop("service", name.split(".")[0])
    return {
        "trace_id": TRACE_ID,
        "span_id": span_id,
        "parent_span_id": parent,
        "name": name,
        "service": service,
        "start_unix_seconds": 100 + start / 1e3,
        "end_unix_seconds": 100 + end / 1e3,
        "attributes": more.pop("attributes", {}),
        "events": [],
        "status": "UNSET",
    }


ROOT = span(
    "gateway.request",
    "a",
    "",
    0,
    100,
    attributes={
        "pagoda.request_id": "01REQ",
        "pagoda.client_request_id": "my-own",
        "gen_ai.response.id": "chatcmpl-9",
        "http.method": "POST",
    },
)
SPANS = {
    "gateway-1.jsonl": [
        span("gateway.request", "z", "", -500, -400, attributes={"pagoda.request_id": "01OTHER"})
        | {"trace_id": "ff" * 16},
        span("gateway.tokenize", "b", "a", 1, 2),
        ROOT,
    ],
    "router-1.jsonl": [
        span("router.match", "d", "c", 4, 5),
        span(
            "router.route",
            "c",
            "a",
            3,
            6,
            attributes={
                "pagoda.route.candidates": json.dumps(PLANS),
                "pagoda.attempt": 0,
                "pagoda.route.outcome": "placed",
            },
        ),
    ],
    "decode-1.1.jsonl": [span("decode.queue", "e", "a", 10, 40)],
    "decode-1.jsonl": [
        span("decode.generate", "f", "a", 40, 99, attributes={"pagoda.cached_tokens": 64}),
        span("lost.child", "g", "unknown", 50, 60),
        span("worker.step", "h", "", 50, 51)
        | {"trace_id": "ee" * 16, "links": [{"trace_id": TRACE_ID, "span_id": "a"}]},
    ],
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, spans in SPANS.items():
        (folder / name).write_text("".join(write_line([record]) for record in spans))
    with (folder / "decode-1.jsonl").open("a") as file:
        file.write("not json\n" + write_line([ROOT])[:40])  # torn by a kill
    return tmp_path


def run(home: Path, *arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(trace)
    result = CliRunner().invoke(app, [*arguments, "--home", str(home)], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


def names(rows: Sequence[str]) -> list[str]:
    return [row.strip().split("  ")[0] for row in rows]


@pytest.mark.parametrize("request_id", ["01REQ", "chatcmpl-9", "my-own", TRACE_ID])
def test_tree_in_order_with_offsets_and_attributes(home: Path, request_id: str) -> None:
    code, output, _ = run(home, request_id)
    lines = output.splitlines()
    assert code == 0
    assert lines[0] == f"request 01REQ, trace {TRACE_ID}, 7 spans, 100.0 ms"
    assert names(lines[2:]) == [
        "gateway.request",
        "gateway.tokenize",
        "router.route",
        "router.match",
        "decode.queue",
        "decode.generate",
        "lost.child (parent missing)",
    ]
    generate = lines[7]
    assert "40.00" in generate
    assert "59.00" in generate
    assert "cached_tokens=64" in generate
    assert "http.method" not in output
    assert "decode-2" not in output


def test_explain_shows_every_plan(home: Path) -> None:
    code, output, _ = run(home, "01REQ", "--explain")
    assert code == 0
    assert "router.route compared 2 plans" in output
    chosen, other = (
        line for line in output.splitlines() if "decode-1" in line or "decode-2" in line
    )
    assert chosen.startswith(" →")
    assert "20.5" in chosen
    assert "(local)" in other
    assert "queue is full" in other


def test_json(home: Path) -> None:
    code, output, _ = run(home, "01REQ", "--json")
    content = json.loads(output)
    assert code == 0
    assert content["trace_id"] == TRACE_ID
    assert content["spans"][0] == ROOT
    assert len(content["spans"]) == 7
    (decision,) = content["candidates"]
    assert decision["span_id"] == "c"
    assert [plan["is_chosen"] for plan in decision["plans"]] == [True, False]
    assert decision["plans"][0]["cost_ms"] == 21.0


def test_unknown_id_says_where_it_looked(home: Path) -> None:
    code, output, errors = run(home, "01NONE", "--wait", "0")
    assert (code, output) == (1, "")
    assert "'01NONE'" in errors
    assert str(home / "traces") in errors


def test_no_folder(tmp_path: Path) -> None:
    code, _, errors = run(tmp_path / "nowhere", "01NONE", "--wait", "0")
    assert code == 1
    assert "does not exist" in errors


class SteppedClock:
    """A clock that only sleeping moves; `on_sleep` runs after each sleep."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.num_sleeps = 0
        self.on_sleep = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.num_sleeps += 1
        self.on_sleep()


def test_waits_for_spans_that_are_not_flushed_yet(tmp_path: Path) -> None:
    clock = SteppedClock(100.0)

    def flush() -> None:
        path = tmp_path / "gateway.jsonl"
        if clock.num_sleeps == 2:
            path.write_text(write_line([ROOT]))
        if clock.num_sleeps == 3:
            late = write_line([span("gateway.settle", "s", "a", 90, 95)])
            path.write_text(path.read_text() + late)

    clock.on_sleep = flush
    spans = find_request(
        SpanFiles(tmp_path), "01REQ", wait_seconds=3, clock=clock, sleep=clock.sleep
    )
    assert [span.name for span in spans] == ["gateway.request", "gateway.settle"]
    assert clock.now <= 103


def test_waiting_is_bounded(tmp_path: Path) -> None:
    clock = SteppedClock(100.0)
    with pytest.raises(TraceNotFoundError):
        find_request(SpanFiles(tmp_path), "01REQ", wait_seconds=3, clock=clock, sleep=clock.sleep)
    assert clock.now == pytest.approx(103, abs=0.2)


def test_old_request_is_not_waited_for(home: Path) -> None:
    clock = SteppedClock(1000.0)
    find_request(
        SpanFiles(home / "traces"), "01REQ", wait_seconds=3, clock=clock, sleep=clock.sleep
    )
    assert clock.num_sleeps == 0


def test_newest_request_of_an_id_wins(home: Path) -> None:
    newer = ROOT | {"trace_id": "ee" * 16, "start_unix_seconds": 200.0, "end_unix_seconds": 201.0}
    (home / "traces" / "gateway-0.jsonl").write_text(write_line([newer]))
    spans = find_request(SpanFiles(home / "traces"), "01REQ", wait_seconds=0)
    assert {span.trace_id for span in spans} == {"ee" * 16}


def test_other_requests_of_a_clients_trace_are_left_out(tmp_path: Path) -> None:
    other = {"pagoda.request_id": "01OTHER"}
    lines = [
        span("gateway.request", "x", "c", -50, -10, attributes=other),
        span("gateway.tokenize", "y", "x", -40, -30),
        span("decode.generate", "z", "never-written", -20, -15, attributes=other),
        ROOT | {"parent_span_id": "c"},
        span("gateway.tokenize", "t", "a", 1, 2),
        span("decode.generate", "g", "never-written", 5, 8),
    ]
    (tmp_path / "gateway.jsonl").write_text(write_line(lines))
    spans = find_request(SpanFiles(tmp_path), "01REQ", wait_seconds=0)
    assert [found.span_id for found in spans] == ["a", "t", "g"]
    assert len(find_request(SpanFiles(tmp_path), TRACE_ID, wait_seconds=0)) == len(lines)


def test_what_a_service_wrote_is_read(tmp_path: Path) -> None:
    setup_telemetry("gateway", CommonSettings(trace_dir=tmp_path), instance_id="g1")
    attributes = {"pagoda.request_id": "01REQ", "ratio": 0.5, "hit": True, "ids": [1, 2]}
    with tracer().start_as_current_span("gateway.request", attributes=attributes) as root:
        root.add_event("happened", {"n": 1})
        record_span("gateway.admit", start_seconds=100.0, end_seconds=101.5)
    shutdown_telemetry()

    admit, found = find_request(SpanFiles(tmp_path), "01REQ", wait_seconds=0)
    assert (found.service, found.attributes) == ("gateway", attributes)
    assert (found.events[0]["name"], found.events[0]["attributes"]) == ("happened", {"n": 1})
    assert (admit.parent_span_id, admit.start, admit.end) == (found.span_id, 100.0, 101.5)


def test_walk_gives_every_span_once(home: Path) -> None:
    spans = find_request(SpanFiles(home / "traces"), "01REQ", wait_seconds=0)
    walked = [span for _, span, _ in walk(spans)]
    assert sorted(span.span_id for span in walked) == sorted(span.span_id for span in spans)


@pytest.mark.parametrize(
    ("start", "end", "drawn"),
    [(0, 1, "████"), (0, 0, "█   "), (1, 1, "   █"), (0.5, 0.75, "  █ "), (-1, 2, "████")],
)
def test_bar(start: float, end: float, drawn: str) -> None:
    assert bar(start, end, cells=4) == drawn


def test_nothing_is_cut_in_a_pipe(home: Path) -> None:
    app = typer.Typer()
    app.command()(trace)
    output = CliRunner().invoke(app, ["01REQ", "--explain", "--home", str(home)]).stdout
    assert "…" not in output
    for title, _ in _CANDIDATE_COLUMNS:
        assert title in output
    assert LONG_WORKER in output
