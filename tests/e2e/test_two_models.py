"""Two models on one NATS, router, kvstore and gateway.

`pagoda up` runs one; the other one's workers join it as docs/howto/models.md says.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.greedy_oracle import GreedyOracle
from support.servers import free_port
from support.stack import Stack, running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs/howto/models.md").read_text()
JOINING = re.findall(r"^\$ \((set -a; .* exec .* serve \w+)\) &$", PAGE, re.MULTILINE)
MAX_TOKENS = 24
START_SECONDS = 90.0
PROMPTS = [[(7 * i + j * j) % 256 for j in range(length)] for i, length in enumerate((5, 40, 77))]


@dataclass
class TwoModels:
    """A stack that serves `first`, and the workers of `second`."""

    stack: Stack
    oracles: dict[str, GreedyOracle]
    environ: dict[str, str]
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_worker(self, role: str) -> None:
        """Paste the page's command, in a folder with .pagoda and .venv."""
        (command,) = (command for command in JOINING if command.endswith(role))
        with (self.stack.home / "logs" / f"second-{role}.log").open("ab") as log:
            self.workers[role] = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.stack.home.parent, env=self.environ, stdout=log, stderr=log,
            )  # fmt: skip

    def until_listed(self, *ids: str) -> None:
        with self.stack.http() as http:
            deadline = time.monotonic() + START_SECONDS
            while set(ids) - {entry["id"] for entry in http.get("/v1/models").json()["data"]}:
                assert time.monotonic() < deadline, f"{ids} are not listed"
                time.sleep(0.05)  # a poll of other processes: there is no event to wait on

    def until_workers(self, number: int) -> None:
        """Wait until the router knows so many workers, its kvstore included."""
        reached = self.stack.wait_metric(
            "router", "pagoda_router_workers", lambda now: now == number, START_SECONDS
        )
        assert reached == number

    def ask(self, model: str, prompt: list[int], **options: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of one greedy completion."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **options,
        }
        with self.stack.http() as http:
            answer = http.post("/v1/completions", json=body)
        return answer.status_code, answer.json()

    def tokens(self, model: str, prompt: list[int], **options: Any) -> list[int]:
        status, answer = self.ask(model, prompt, **options)
        assert status == 200, answer
        return list(answer["choices"][0]["token_ids"])


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoModels]:
    place = tmp_path_factory.mktemp("two")
    (place / ".venv").symlink_to(sys.prefix)
    first = make_tiny_checkpoint(place / "first", "llama")
    second = make_tiny_checkpoint(place / "second", "qwen3", seed=1)
    environ = {
        "PAGODA_MODEL": str(first),
        "PAGODA_MODEL_ALIASES": '["gpt-4o"]',
        "PAGODA_GATEWAY_MODELS": json.dumps({"second": str(second)}),
        "PAGODA_DTYPE": "float32",
    }
    joining = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PAGODA_")},
        "PAGODA_MODEL": str(second),
        "PAGODA_MODEL_ALIASES": '["gpt-4o-mini"]',
        "PAGODA_DTYPE": "float32",
        "PAGODA_DECODE_DRAIN_SECONDS": "1",
        "PAGODA_PREFILL_DRAIN_SECONDS": "1",
        "OMP_NUM_THREADS": "1",
    }
    oracles = {"first": GreedyOracle(first), "second": GreedyOracle(second)}
    with running_stack(place / ".pagoda", environ) as stack, contextlib.ExitStack() as ending:
        ports = {"second-prefill": free_port(), "second-decode": free_port()}
        stack.health_ports |= ports
        joining["PAGODA_PREFILL_HEALTH_PORT"] = str(ports["second-prefill"])
        joining["PAGODA_DECODE_HEALTH_PORT"] = str(ports["second-decode"])
        two = TwoModels(stack, oracles, joining)
        ending.callback(_stop, two)
        for role in ("prefill", "decode"):
            two.start_worker(role)
        two.until_listed("second")
        two.until_workers(5)
        yield two


def _stop(two: TwoModels) -> None:
    for process in two.workers.values():
        process.terminate()
    for process in two.workers.values():
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def test_lists_both_models_and_their_aliases(two_models: TwoModels) -> None:
    with two_models.stack.http() as http:
        listed = http.get("/v1/models").json()["data"]
    assert [(entry["id"], entry["root"]) for entry in listed] == [
        ("first", "first"),
        ("second", "second"),
        ("gpt-4o", "first"),
        ("gpt-4o-mini", "second"),
    ]


def test_each_request_gets_its_own_model_s_tokens(two_models: TwoModels) -> None:
    """Equal prompts to both, at once, then again from cached blocks."""
    cases = [(model, prompt) for prompt in PROMPTS for model in two_models.oracles] * 2
    expected = [two_models.oracles[model].greedy(prompt, MAX_TOKENS) for model, prompt in cases]
    assert expected[0] != expected[1], "the models would agree anyway"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda case: two_models.tokens(*case), cases))
    assert found == expected
    for role in ("decode", "second-decode"):
        stack = two_models.stack
        assert stack.metric(role, "pagoda_kv_transfer_bytes_total", direction="received") > 0
        assert stack.metric(role, "pagoda_local_prefill_fallbacks_total") == 0
        assert stack.metric(role, "pagoda_kv_bad_digests_total") == 0


def test_an_alias_gets_its_model_s_tokens_and_name(two_models: TwoModels) -> None:
    for alias, model in (("gpt-4o", "first"), ("gpt-4o-mini", "second")):
        status, answer = two_models.ask(alias, PROMPTS[1])
        assert (status, answer["model"]) == (200, model)
        expected = two_models.oracles[model].greedy(PROMPTS[1], MAX_TOKENS)
        assert answer["choices"][0]["token_ids"] == expected


def test_one_model_s_dead_decode_worker_is_nothing_to_the_other(two_models: TwoModels) -> None:
    stack, num_tokens = two_models.stack, 400
    began, streamed = threading.Event(), []

    def stream() -> None:
        body = {
            "model": "first",
            "prompt": PROMPTS[0],
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
        with stack.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    streamed.extend(json.loads(line[6:])["choices"][0]["token_ids"])
                    began.set()

    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(stream)
        assert began.wait(60)
        two_models.workers["decode"].kill()
        two_models.workers["decode"].wait(60)
        two_models.until_workers(4)
        status, refused = two_models.ask("second", PROMPTS[0])
        served = two_models.tokens("first", PROMPTS[1])
        streaming.result(60)
    wanted, deadline = "no decode worker serves 'second' now", time.monotonic() + START_SECONDS
    with stack.http() as http:
        while True:  # the gateway may miss its heartbeats later than the router does
            ready = http.get("/readyz")
            said = ready.json()["components"]["model"]["detail"]
            if said == wanted or time.monotonic() > deadline:
                break
    assert status == 503
    assert refused["error"]["message"] == "no worker can run model 'second': none is alive"
    assert served == two_models.oracles["first"].greedy(PROMPTS[1], MAX_TOKENS)
    assert streamed == two_models.oracles["first"].greedy(PROMPTS[0], num_tokens)
    assert ready.status_code == 200
    assert said == wanted

    two_models.start_worker("decode")
    two_models.until_workers(5)
    expected = two_models.oracles["second"].greedy(PROMPTS[0], MAX_TOKENS)
    assert two_models.tokens("second", PROMPTS[0]) == expected
