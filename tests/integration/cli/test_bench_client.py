"""`pagoda bench` against a real HTTP server that misbehaves on request."""

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.openai_server import OpenAiServer, openai_server
from typer.testing import CliRunner

from pagoda_cli.bench import bench
from pagoda_cli.bench.config import BenchConfig
from pagoda_cli.bench.results import Results
from pagoda_cli.bench.runner import BenchRun
from pagoda_cli.bench.workload import LengthRange
from pagoda_cli.endpoint import Endpoint

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[OpenAiServer]:
    with openai_server() as server:
        yield server


async def run(server: OpenAiServer, *, model: str = "echo", **options: Any) -> Results:
    values: dict[str, Any] = {
        "prompt_tokens": LengthRange(8, 8),
        "output_tokens": LengthRange(5, 5),
        "num_warmup": 0,
        **options,
    }
    if not {"rate", "trace"} & values.keys():
        values = {"concurrency": 2, "num_requests": 6, **values}
    endpoint = Endpoint(base_url=f"{server.url}/v1", api_key="k", model=model)
    return await BenchRun(BenchConfig(**values), endpoint).run()


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_closed_loop_counts_everything(server: OpenAiServer, api: str) -> None:
    results = await run(server, api=api)
    assert (results.num_ok, results.failures) == (6, {})
    assert results.num_prompt_tokens == 6 * 8
    assert results.num_output_tokens == 6 * 5
    assert results.num_cached_tokens == 6
    assert results.output_counted_by == {"usage": 6}
    assert results.tokens_per_event == 1.0
    assert results.itl_ms is not None
    assert results.itl_ms.num_samples == 6 * 4
    assert results.ttft_ms is not None
    assert results.e2e_ms is not None
    assert 0 < results.ttft_ms.p50 <= results.e2e_ms.p50


async def test_request_carries_what_was_asked(server: OpenAiServer) -> None:
    await run(server, ignore_eos=True, temperature=0.5, seed=3, send_ids=True, num_requests=1)
    body = server.bodies[0]
    assert isinstance(body.pop("prompt")[0], int)
    assert body == {
        "model": "echo",
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert server.headers[0]["authorization"] == "Bearer k"


@pytest.mark.parametrize(("keep_alive", "num_connections"), [(True, 1), (False, 6)])
async def test_a_connection_for_each_request_if_asked(
    server: OpenAiServer, keep_alive: bool, num_connections: int
) -> None:
    await run(server, concurrency=1, num_requests=6, keep_alive=keep_alive)
    assert len(server.client_ports) == 6
    changes = sum(a != b for a, b in itertools.pairwise(server.client_ports))
    assert 1 + changes == num_connections


async def test_prompts_repeat_with_the_seed(server: OpenAiServer) -> None:
    for _ in range(2):
        await run(server, num_requests=3, concurrency=1)
    prompts = [body["prompt"] for body in server.bodies]
    assert prompts[:3] == prompts[3:]
    assert len(set(prompts)) == 3


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("busy", "http_429"),
        ("cut", "disconnected"),
        ("broken", "error_event"),
        ("silent", "empty"),
        ("stuck", "timeout"),
    ],
)
async def test_failures_are_counted_by_kind(server: OpenAiServer, model: str, kind: str) -> None:
    seconds = 0.3 if model == "stuck" else 60.0
    results = await run(server, model=model, timeout_seconds=seconds)
    assert results.failures == {kind: 6}
    assert (results.num_ok, results.failure_ratio) == (0, 1.0)
    assert results.shed_ratio == (1.0 if model == "busy" else 0.0)
    assert results.ttft_ms is None
    assert results.failure_examples[0].startswith(kind)


async def test_refused_connection_is_a_failure(server: OpenAiServer) -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", api_key="", model="echo")
    config = BenchConfig(
        concurrency=1,
        num_requests=2,
        num_warmup=0,
        prompt_tokens=LengthRange(1, 1),
        output_tokens=LengthRange(1, 1),
    )
    results = await BenchRun(config, endpoint, on_note=lambda _: None).run()
    assert results.failures == {"connect": 2}


async def test_open_loop_sends_every_arrival(server: OpenAiServer) -> None:
    results = await run(server, rate=200.0, num_requests=20)
    assert results.num_ok == 20


async def test_open_loop_past_the_limit_is_a_failure_not_a_wait(server: OpenAiServer) -> None:
    results = await run(
        server, model="stuck", rate=500.0, num_requests=6, max_in_flight=2, timeout_seconds=1.5
    )
    assert results.failures == {"client_limit": 4, "timeout": 2}


async def test_duration_ends_a_closed_loop(server: OpenAiServer) -> None:
    results = await run(server, duration_seconds=0.3, num_requests=None)
    assert results.num_ok > 0
    assert results.num_interrupted == 0


async def test_trace_is_replayed(server: OpenAiServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": index * 100, "input_length": 700, "output_length": 30, "hash_ids": [0, index]}
        for index in range(4)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = await run(server, trace=trace, trace_speed=10, trace_scale=0.1, num_requests=3)
    assert results.num_ok == 3
    assert [len(body["prompt"].split()) for body in server.bodies] == [70, 70, 70]
    assert {body["max_tokens"] for body in server.bodies} == {3}
    shared = {" ".join(body["prompt"].split()[:51]) for body in server.bodies}
    assert len(shared) == 1


async def test_stop_cuts_what_is_in_flight_and_says_so(server: OpenAiServer) -> None:
    config = BenchConfig(
        concurrency=3,
        num_requests=100,
        num_warmup=0,
        prompt_tokens=LengthRange(1, 1),
        output_tokens=LengthRange(1, 1),
    )
    endpoint = Endpoint(base_url=f"{server.url}/v1", api_key="", model="stuck")
    bench_run = BenchRun(config, endpoint)
    original = bench_run._send

    async def send_then_stop(*arguments: Any, **options: Any) -> None:
        if bench_run.num_in_flight == 3:
            bench_run.stop.set()
        await original(*arguments, **options)

    bench_run._send = send_then_stop  # type: ignore[method-assign]
    results = await bench_run.run()
    assert results.num_interrupted == 3
    assert results.num_requests == 0


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(bench)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160", "PAGODA_HOME": "none"})


def test_command_prints_and_writes(server: OpenAiServer, tmp_path: Path) -> None:
    file = tmp_path / "out" / "result.json"
    arguments = f"--url {server.url} --api-key secret -c 2 -n 8 --slo-ttft-ms 60000 --json {file}"
    result = invoke(*arguments.split())
    assert result.exit_code == 0, result.output
    assert "8 complete, 0 failed" in result.output
    assert "0.0% failed are not in here" in result.output
    assert "100.0% of requests (TTFT <= 60000 ms" in result.output
    content = json.loads(file.read_text())
    assert content["endpoint"]["model"] == "echo"
    assert content["results"]["goodput"]["ratio"] == 1.0
    assert content["config"]["seed"] == 0
    assert content["provenance"]["num_cores"] >= 1
    assert "secret" not in file.read_text()


def test_command_fails_plainly_when_nothing_works(server: OpenAiServer) -> None:
    result = invoke("--url", server.url, "--model", "busy", "-n", "2")
    assert result.exit_code == 1
    assert "failed all 2 warm-up requests, the last with http_429" in result.output


def test_command_shows_failures_beside_latencies(server: OpenAiServer) -> None:
    result = invoke("--url", server.url, "--model", "busy", "-n", "2", "--warmup", "0")
    assert result.exit_code == 1
    assert "0 complete, 2 failed" in result.output
    assert "100.0%, of which shed 100.0% (http_429 2)" in result.output
    assert "TTFT" not in result.output


def test_approximate_lengths_are_said() -> None:
    with openai_server(has_tokenize=False) as server:
        result = invoke("--url", server.url, "-n", "1")
    assert result.exit_code == 0
    assert "approximate" in result.output


def test_ctrl_c_prints_what_it_has(server: OpenAiServer) -> None:
    script = "import typer; from pagoda_cli.bench import bench; typer.run(bench)"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "--url", server.url, "--model", "stuck", "--warmup", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path), "COLUMNS": "160"},
    )
    assert server.is_stuck.wait(60)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "1 in flight, not counted" in output
