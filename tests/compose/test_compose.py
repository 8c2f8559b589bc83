"""compose.yaml with its CPU overlay, on a real Docker Engine: `make compose-test`.

Jaeger is left out: the services must run without a collector.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PORT = "8123"
SERVICES = ["nats", "redis", "gateway", "router", "prefill", "decode", "kvstore"]
COMPOSE = [
    *["docker", "compose", "--project-name", "pagoda-test"],
    *["--file", "compose.yaml", "--file", "deploy/compose.cpu.yaml"],
]


def compose(*arguments: str) -> str:
    environ = {**os.environ, "PAGODA_HTTP_PORT": PORT, "PAGODA_API_KEY": "sk-compose-test"}
    done = subprocess.run(
        [*COMPOSE, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, (
        f"compose {arguments}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


@pytest.fixture(scope="module")
def running() -> Iterator[httpx.Client]:
    compose("build", *SERVICES)
    try:
        compose("up", "--detach", "--wait", "--wait-timeout", "180", *SERVICES)
        headers = {"Authorization": "Bearer sk-compose-test"}
        url = f"http://127.0.0.1:{PORT}"
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            yield client
    except BaseException:
        print(compose("logs", "--no-color", "--tail", "60"))
        raise
    finally:
        compose("down", "--volumes", "--remove-orphans")


def streamed_text(client: httpx.Client, content: str) -> tuple[str, str]:
    """The streamed answer and its x-request-id."""
    body = {
        "model": client.get("/v1/models").json()["data"][0]["id"],
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
    }
    pieces = []
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                pieces += [choice["delta"].get("content") or "" for choice in choices]
    return "".join(pieces), response.headers["x-request-id"]


def test_streams_through_the_published_port(running: httpx.Client) -> None:
    text, request_id = streamed_text(running, "Good morrow, what news?")
    receipt = running.get(f"/v1/receipts/{request_id}").json()
    assert text.strip()
    assert receipt["output_tokens"] > 0
    assert receipt["stages_ms"]["kv_transfer"] > 0, "the decode worker computed the prompt itself"


def test_kv_goes_through_memory_that_workers_share(running: httpx.Client) -> None:
    streamed_text(running, "What is in thy mind?")

    assert "gRPC payloads" not in compose("logs", "--no-color", "prefill", "decode")


def test_every_combination_of_files_is_valid() -> None:
    for overlay in sorted((ROOT / "deploy").glob("compose.*.yaml")):
        command = ["docker", "compose", "-f", "compose.yaml", "-f", str(overlay), "config", "-q"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PAGODA_LAN": "10.0.0.1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr


def test_scales_decode_by_itself(running: httpx.Client) -> None:
    compose("up", "--detach", "--wait", "--no-recreate", "--scale", "decode=2", *SERVICES)
    first, _ = streamed_text(running, "Who is there?")
    second, _ = streamed_text(running, "Who is there?")
    rows = [json.loads(line) for line in compose("ps", "--format", "json").splitlines()]
    assert sum(row["Service"] == "decode" for row in rows) == 2
    assert first == second
    assert first.strip()
