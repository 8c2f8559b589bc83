"""`pagoda up` as a user meets it: two of them on one machine."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.stack import PAGODA, Stack, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Stack]]:
    """Two stacks side by side, the first with all defaults; the last tests stop them."""
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    default, aggregated = {"PAGODA_LOCAL_PREFILL": "auto"}, {"PAGODA_TOPOLOGY": "aggregated"}
    with running_stack(first, default) as stack, running_stack(second, aggregated) as other:
        yield stack, other


def test_two_stacks_run_side_by_side(stacks: tuple[Stack, Stack]) -> None:
    for stack in stacks:
        with stack.http() as http:
            assert http.get("/v1/models").status_code == 200
    stack, other = stacks
    with other.http() as http:
        assert http.get(f"{stack.url}/v1/models").status_code == 401


def test_prompts_are_computed_where_their_kv_is_wanted(stacks: tuple[Stack, Stack]) -> None:
    """Workers of one machine share its processors: nobody gains by a way to the prefill worker."""
    stack, _ = stacks
    client = stack.openai()
    for number in range(3):
        client.completions.create(model=stack.model, prompt=f"Scene {number}. " * 9, max_tokens=4)
    stack.close_clients()
    assert stack.metric("decode", "pagoda_prefill_tokens_total") > 0
    assert stack.metric("prefill", "pagoda_prefill_tokens_total") == 0


def test_killed_worker_is_started_again(stacks: tuple[Stack, Stack]) -> None:
    _, stack = stacks
    decode = next(
        p
        for p in psutil.Process(stack.process.pid).children(recursive=True)
        if "pagoda_decode" in " ".join(p.cmdline())
    )
    decode.kill()
    client = stack.openai().with_options(
        max_retries=20
    )  # a busy machine starts a worker in a minute
    answer = client.completions.create(model=stack.model, prompt="To be, or", max_tokens=4)
    stack.close_clients()
    assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize("number", range(len(STOP_SIGNALS)), ids=[s.name for s in STOP_SIGNALS])
def test_ready_line_curl_and_a_clean_stop(stacks: tuple[Stack, Stack], number: int) -> None:
    stack = stacks[number]
    assert stack.ready_lines[-2] == f"pagoda ready {stack.url}"
    curl = subprocess.run(
        shlex.split(stack.ready_lines[-1]), capture_output=True, text=True, timeout=60
    )
    assert curl.returncode == 0
    assert curl.stdout.rstrip().endswith("data: [DONE]")
    for log in (stack.home / "logs").glob("*.log"):
        assert "permissions violation" not in log.read_text().lower(), log
    children = psutil.Process(stack.process.pid).children(recursive=True)
    assert stack.stop(STOP_SIGNALS[number]) == 0
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert len(gone) >= 7


def test_unknown_setting_refuses_to_start_and_names_the_nearest(tmp_path: Path) -> None:
    environ = {**os.environ, "PAGODA_HOME": str(tmp_path), "PAGODA_HTP_PORT": "8000"}
    done = subprocess.run([PAGODA, "up"], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "PAGODA_HTP_PORT" in done.stderr
    assert "PAGODA_HTTP_PORT" in done.stderr
    assert "Traceback" not in done.stderr
