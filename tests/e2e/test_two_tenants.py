"""A tenant is served while another one's sequences have every seat and more of them wait."""

import os
import subprocess
from pathlib import Path

import httpx
import pytest
from support.stack import PAGODA, Stack, running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WAITING = "pagoda_num_requests_waiting"
PREEMPTED = "pagoda_preemptions_total"


def key_of_new_tenant(stack: Stack, name: str) -> str:
    environ = {**os.environ, "PAGODA_HOME": str(stack.home)}
    for arguments in (["tenants", "create", name], ["keys", "create", "--tenant", name]):
        done = subprocess.run(
            [PAGODA, *arguments], env=environ, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("topology", ["disaggregated", "aggregated"])
def test_a_small_request_is_served_beside_a_flood(topology: str, tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", max_position_embeddings=32768)
    environ = {
        "PAGODA_MODEL": str(checkpoint),
        "PAGODA_TOPOLOGY": topology,
        "PAGODA_DECODE_MAX_NUM_SEQS": "2",
    }
    with running_stack(tmp_path / "home", environ) as stack:
        key = key_of_new_tenant(stack, "small")
        flood = stack.openai().completions.create(
            model=stack.model, prompt=["enter the king", "exeunt"], n=4, max_tokens=20000,
            stream=True, extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(flood))
        assert stack.wait_metric("decode", WAITING, lambda n: n == 6, 20) == 6
        headers = {"Authorization": f"Bearer {key}"}
        body = {"model": stack.model, "prompt": "a word", "max_tokens": 4, "ignore_eos": True}
        with httpx.Client(base_url=stack.url, headers=headers, timeout=60) as http:
            answer = http.post("/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 4
        # It took one of the two seats, and nothing of the flood had ended: six waited, then seven.
        assert stack.metric("decode", PREEMPTED) >= 1
        assert stack.metric("decode", WAITING) >= 6
        flood.close()
