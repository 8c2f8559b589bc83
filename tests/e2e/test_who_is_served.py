"""Who has a seat, where more sequences want one: tenants share them, and priorities count."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from support.stack import PAGODA, Stack, running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WAITING = "pagoda_num_requests_waiting"
PREEMPTED = "pagoda_preemptions_total"
SECONDS = 60  # for what a busy machine does late


# Disaggregated, where a prefill worker's scheduler decides too. What one scheduler decides:
# tests/unit/engine/scheduler.
@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    place: Path = tmp_path_factory.mktemp("stack")
    environ = {
        "PAGODA_MODEL": str(make_tiny_checkpoint(place / "model", max_position_embeddings=32768)),
        "PAGODA_DECODE_MAX_NUM_SEQS": "2",
    }
    with running_stack(place / "home", environ) as stack:
        yield stack


def key_of_new_tenant(stack: Stack, name: str) -> str:
    environ = {**os.environ, "PAGODA_HOME": str(stack.home)}
    for arguments in (["tenants", "create", name], ["keys", "create", "--tenant", name]):
        done = subprocess.run(
            [PAGODA, *arguments], env=environ, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for_waiting(stack: Stack, number: int) -> None:
    assert stack.wait_metric("decode", WAITING, lambda n: n == number, SECONDS) == number


def endless(stack: Stack, **options: object) -> openai.Stream[openai.types.Completion]:
    """A stream that has brought something and goes on."""
    stream = stack.openai().completions.create(
        model=stack.model, max_tokens=30000, stream=True, extra_body={"ignore_eos": True}, **options
    )  # type: ignore[call-overload]
    next(iter(stream))
    return stream


def served_at(stack: Stack, priority: int) -> float:
    """When the gateway had the first token of a request: clients hear of it in any order."""
    with stack.http() as http:
        body = {
            "model": stack.model, "prompt": f"number {priority}", "max_tokens": 100,
            "priority": priority, "ignore_eos": True,
        }  # fmt: skip
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        receipt = http.get(f"/v1/receipts/{answer.headers['x-request-id']}").json()
    return receipt["opened"] + receipt["ttft_ms"] / 1000


def test_a_later_request_of_a_lower_number_is_served_first(stack: Stack) -> None:
    blockers = [endless(stack, prompt="the crown") for _ in range(2)]
    priorities = (5, 0, -5)
    with ThreadPoolExecutor(len(priorities)) as threads:
        asked = {}
        for number, priority in enumerate(priorities, 1):
            asked[priority] = threads.submit(served_at, stack, priority)
            wait_for_waiting(stack, number)
        blockers[0].close()  # one seat is free now
        served = {priority: future.result(timeout=60) for priority, future in asked.items()}
    stack.close_clients()
    assert sorted(priorities, key=served.__getitem__) == [-5, 0, 5]


def test_a_small_request_is_served_beside_a_flood(stack: Stack) -> None:
    key = key_of_new_tenant(stack, "small")
    before = stack.metric("decode", PREEMPTED)
    flood = endless(stack, prompt=["enter the king", "exeunt"], n=4)
    wait_for_waiting(stack, 6)
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": stack.model, "prompt": "a word", "max_tokens": 4, "ignore_eos": True}
    with httpx.Client(base_url=stack.url, headers=headers, timeout=60) as http:
        answer = http.post("/v1/completions", json=body)
    assert answer.json()["usage"]["completion_tokens"] == 4
    # It took one of the two seats, and nothing of the flood had ended: six waited, then seven.
    assert stack.metric("decode", PREEMPTED) > before
    assert stack.metric("decode", WAITING) >= 6
    flood.close()
    stack.close_clients()
