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
PORT = "8123-8129"  # one for each gateway; Docker takes any that is free
SERVICES = ["nats", "redis", "gateway", "applier", "router", "prefill", "decode", "kvstore"]
API_KEY = "sk-compose-test=="  # padding is a part of it
READ = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
UNTIL_LOST = """
import time, urllib.error, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen("http://127.0.0.1:9000/readyz", timeout=5)
    except urllib.error.HTTPError as error:
        print(error.read().decode())
        break
    time.sleep(0.1)
"""
COMPOSE = [
    *["docker", "compose", "--project-name", "pagoda-test"],
    *["--file", "compose.yaml", "--file", "deploy/compose.cpu.yaml"],
]


def compose(*arguments: str) -> str:
    environ = {
        **os.environ,
        "PAGODA_HTTP_PORT": PORT,
        "PAGODA_API_KEY": API_KEY,
        "PAGODA_LOCAL_PREFILL": "off",  # else no KV would move between these containers
    }
    done = subprocess.run(
        [*COMPOSE, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, (
        f"compose {arguments}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def url_of_gateway(index: int) -> str:
    port = compose("port", "--index", str(index), "gateway", "8000").strip().rsplit(":")[-1]
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def running() -> Iterator[httpx.Client]:
    compose("build", *SERVICES)
    try:
        compose("up", "--detach", "--wait", "--wait-timeout", "180", *SERVICES)
        headers = {"Authorization": f"Bearer {API_KEY}"}
        with httpx.Client(base_url=url_of_gateway(1), headers=headers, timeout=60) as client:
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


def test_no_secret_can_be_seen_from_outside(running: httpx.Client) -> None:
    ids = compose("ps", "--all", "--quiet").split()
    inspected = docker("inspect", *ids)
    env = compose("exec", "gateway", "cat", "/run/pagoda/env")
    drawn = [line.split("=", 1)[1] for line in env.splitlines() if "USER" not in line]

    assert API_KEY in drawn
    assert not any(secret in inspected for secret in drawn)


def test_a_worker_has_no_other_s_secrets(running: httpx.Client) -> None:
    names = [
        line.split("=")[0]
        for line in compose("exec", "decode", "cat", "/run/pagoda/env").splitlines()
    ]
    mode = compose("exec", "decode", "stat", "-c", "%a %u", "/run/pagoda/env")

    assert names == ["PAGODA_NATS_USER", "PAGODA_NATS_TOKEN", "PAGODA_CLUSTER_TOKEN"]
    assert mode.split() == ["400", "10001"]


def test_nobody_was_refused_a_subject(running: httpx.Client) -> None:
    streamed_text(running, "What is in thy mind?")

    assert "permissions violation" not in compose("logs", "--no-color").lower()


def test_metrics_of_all_can_be_read_inside_the_network(running: httpx.Client) -> None:
    for service in ("gateway", "applier", "router", "prefill", "decode", "kvstore"):
        text = compose("exec", "router", "python", "-c", READ, f"http://{service}:9000/metrics")
        assert "pagoda_" in text


def test_every_combination_of_files_is_valid() -> None:
    two_models, cpu = "deploy/compose.two-models.yaml", "deploy/compose.cpu.yaml"
    further = "deploy/compose.two-models-cpu.yaml"
    alone = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("deploy/compose.*.yaml"))
    combinations = [
        *([overlay] for overlay in alone if overlay != further),
        [cpu, two_models, further],
        ["deploy/compose.gpus.yaml", two_models],
        [cpu, "deploy/compose.no-traces.yaml"],
    ]
    for overlays in combinations:
        files = [word for overlay in ["compose.yaml", *overlays] for word in ("-f", overlay)]
        command = ["docker", "compose", *files, "config", "-q"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ
            | {
                "PAGODA_LAN": "10.0.0.1",
                "PAGODA_SECOND_MODEL_DIR": "demo/model",
                "PAGODA_SECOND_MODEL_NAME": "second",
            },
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


def test_gateways_and_kvstores_scale(running: httpx.Client) -> None:
    services = ["gateway=2", "kvstore=2"]
    scale = [word for service in services for word in ("--scale", service)]
    compose("up", "--detach", "--wait", "--no-recreate", *scale, *SERVICES)
    headers = {"Authorization": f"Bearer {API_KEY}"}
    for index in (1, 2):
        with httpx.Client(base_url=url_of_gateway(index), headers=headers, timeout=60) as client:
            text, _ = streamed_text(client, "Who is there?")
        assert text.strip()


def test_who_lost_nats_says_so(running: httpx.Client) -> None:
    compose("stop", "nats")
    try:
        for service in ("applier", "router", "prefill", "decode", "kvstore"):
            said = compose("exec", service, "python", "-c", UNTIL_LOST)
            assert "no connection " in said, service
    finally:
        compose("start", "nats")
        compose("up", "--detach", "--wait", "--no-recreate", *SERVICES)
