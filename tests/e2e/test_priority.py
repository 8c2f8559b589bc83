"""`priority` through the whole system: who has the lower number is served first."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.stack import running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WAITING = "pagoda_num_requests_waiting"


@pytest.mark.parametrize("topology", ["disaggregated", "aggregated"])
def test_a_later_request_of_a_lower_number_is_served_first(topology: str, tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", max_position_embeddings=32768)
    environ = {
        "PAGODA_MODEL": str(checkpoint),
        "PAGODA_TOPOLOGY": topology,
        "PAGODA_DECODE_MAX_NUM_SEQS": "1",
    }
    with running_stack(tmp_path / "home", environ) as stack, ThreadPoolExecutor(3) as threads:
        client = stack.openai()
        blocker = client.completions.create(
            model=stack.model, prompt="the crown", stream=True, max_tokens=30000,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(blocker))  # it has the only seat now
        finished: list[int] = []
        lock = threading.Lock()

        def ask(priority: int) -> None:
            stack.openai().completions.create(
                model=stack.model, prompt=f"number {priority}", max_tokens=400,
                extra_body={"priority": priority, "ignore_eos": True},
            )  # fmt: skip
            with lock:
                finished.append(priority)

        asked = []
        for number, priority in enumerate((5, 0, -5), 1):
            asked.append(threads.submit(ask, priority))
            assert stack.wait_metric("decode", WAITING, lambda n, m=number: n == m, 10) == number
        blocker.close()
        for future in asked:
            future.result(timeout=60)
    assert finished == [-5, 0, 5]
