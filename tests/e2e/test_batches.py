"""A batch on the real system, whose gateway and decode worker are killed in the middle of it."""

import time
from pathlib import Path

import openai
import psutil
import pytest
from openai.types import Batch
from support.batch_files import answers, numbered
from support.processes import busy_decode_workers
from support.stack import Stack, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

NUM_LINES = 60
BODY = {"model": "demo", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def gateway_of(stack: Stack) -> psutil.Process:
    return next(
        process
        for process in psutil.Process(stack.process.pid).children(recursive=True)
        if "pagoda_gateway" in process.cmdline()
    )


def wait(client: openai.OpenAI, batch_id: str, num_answers: int) -> Batch:
    """Poll until so many lines are answered or the batch has ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            batch = client.batches.retrieve(batch_id)
        except Exception:  # the gateway is being started again
            time.sleep(0.1)
            continue
        assert batch.request_counts is not None
        assert batch.request_counts.failed == 0
        if batch.completed_at or batch.request_counts.completed >= num_answers:
            return batch
        time.sleep(0.05)  # another process
    raise AssertionError(f"{batch_id} has not {num_answers} answers after two minutes")


def test_a_batch_survives_whatever_is_killed(tmp_path: Path) -> None:
    with running_stack(tmp_path / "home", {"PAGODA_TOPOLOGY": "prefill=1,decode=2"}) as stack:
        client = stack.openai()
        file = client.files.create(file=("in.jsonl", numbered(NUM_LINES, **BODY)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        wait(client, batch.id, 10)
        gateway_of(stack).kill()
        wait(client, batch.id, 25)
        for worker in busy_decode_workers(stack.process.pid):
            worker.kill()
        ended = wait(client, batch.id, NUM_LINES + 1)
        assert ended.status == "completed"
        found = answers(client.files.content(ended.output_file_id or "").content)
        assert [line["custom_id"] for line in found] == [f"line-{i}" for i in range(NUM_LINES)]
        for line in (found[0], found[NUM_LINES // 2], found[-1]):
            asked = {**BODY, "prompt": line["custom_id"]}
            with stack.http() as http:
                direct = http.post("/v1/completions", json=asked).json()
            body = line["response"]["body"]
            assert body["choices"][0]["text"] == direct["choices"][0]["text"]
