"""What an interactive client feels of a batch that runs beside it: TTFT and time per token.

The whole system with the demo model. One client streams completions one after the other; rounds
alone and rounds beside a batch take turns, so that a busy machine disturbs both alike.

    PYTHONPATH=tests python benchmarks/serving/batch_beside_chat.py [--rounds 4]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from support.batch_files import numbered
from support.stack import Stack, running_stack

REQUESTS = 8  # of a round
TOKENS = 48
BATCH_LINES = 2000
PAUSE_SECONDS = 0.2


def main() -> None:
    """Measure and print one line for each state."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as home, running_stack(Path(home) / "home") as stack:
        ask(stack, 0)
        found: dict[str, list[tuple[float, float]]] = {"alone": [], "beside a batch": []}
        num_answered = 0
        for number in range(rounds):
            found["alone"] += measure(stack, number)
            batch = begin_batch(stack)
            found["beside a batch"] += measure(stack, number)
            num_answered += end_batch(stack, batch)
    for state, values in found.items():
        ttft, tpot = (
            sorted(1e3 * value for value in column) for column in zip(*values, strict=True)
        )
        print(
            f"{state:15} TTFT p50 {statistics.median(ttft):6.1f} ms, p90 {tail(ttft):6.1f} ms; "
            f"time per token p50 {statistics.median(tpot):5.1f} ms, p90 {tail(tpot):5.1f} ms"
        )
    print(f"lines answered meanwhile: {num_answered}")


def tail(values: list[float]) -> float:
    """Return the 90th percentile of sorted values."""
    return values[int(0.9 * (len(values) - 1))]


def measure(stack: Stack, number: int) -> list[tuple[float, float]]:
    """Return (TTFT, time per token) in seconds of a round's requests."""
    found = []
    for index in range(REQUESTS):
        time.sleep(PAUSE_SECONDS)
        found.append(ask(stack, 1 + number * REQUESTS + index))
    return found


def ask(stack: Stack, number: int) -> tuple[float, float]:
    """Stream one completion."""
    body = {
        "model": stack.model, "prompt": f"Speech {number}: " + "what news, my lord? " * 10,
        "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    moments = []
    started = time.perf_counter()
    with stack.http() as http, http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                assert "error" not in json.loads(line[6:]), line
                moments.append(time.perf_counter())
    return moments[0] - started, (moments[-1] - moments[0]) / (TOKENS - 1)


def begin_batch(stack: Stack) -> str:
    """Start a batch that is longer than a round, and return when its lines run."""
    client = stack.openai()
    data = numbered(BATCH_LINES, model=stack.model, max_tokens=TOKENS, ignore_eos=True)
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    while not batch.request_counts or not batch.request_counts.completed:
        time.sleep(0.05)  # another process
        batch = client.batches.retrieve(batch.id)
    return batch.id


def end_batch(stack: Stack, batch_id: str) -> int:
    """Cancel it; return how many of its lines were answered."""
    client = stack.openai()
    batch = client.batches.cancel(batch_id)
    while not batch.cancelled_at:
        time.sleep(0.05)  # another process
        batch = client.batches.retrieve(batch_id)
    assert batch.request_counts is not None
    return batch.request_counts.completed


if __name__ == "__main__":
    main()
