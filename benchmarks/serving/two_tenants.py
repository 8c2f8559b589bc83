"""What one tenant feels of another: 4 tokens alone, and beside 8 prompts x 16 choices x 500 tokens.

The whole system with the demo model. Rounds alone and rounds beside take turns, so that a busy
machine disturbs both alike. Prompts are new each time: nothing is cached.

    PYTHONPATH=tests python benchmarks/serving/two_tenants.py [--rounds 4] [--topology aggregated]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from support.stack import PAGODA, Stack, running_stack

PROMPTS, CHOICES, FLOOD_TOKENS = 8, 16, 500
TOKENS = 4
PAUSE_SECONDS = 0.15
SETTLE_SECONDS = 1.5
GENERATED = "pagoda_decode_tokens_total"
# In a process of its own that hardly looks at what it reads: the small tenant's client waits
# for nothing of it.
READER = """
import sys, urllib.request
url, key, body = sys.argv[1:]
begun = False
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
while True:
    request = urllib.request.Request(url, body.encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        while chunk := answer.read1(1 << 16):
            if b'"error"' in chunk:
                sys.exit(chunk.decode())
            if not begun:
                print("begun", flush=True)
            begun = True
"""


def main() -> None:
    """Measure and print one line for each state."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--topology", default="disaggregated")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="that the small tenant asks for")
    parser.add_argument("--requests", type=int, default=6, help="of the small tenant, in a round")
    options = parser.parse_args()
    measured = options.requests, options.tokens
    environ = {"PAGODA_TOPOLOGY": options.topology}
    with (
        tempfile.TemporaryDirectory() as home,
        running_stack(Path(home) / "home", environ) as stack,
    ):
        key = new_tenant(stack, "small")
        with client(stack, key) as http:
            for index in range(4):
                ask(http, stack, index, options.tokens)
            found: dict[str, list[float]] = {"alone": [], "beside": []}
            rates: dict[str, list[float]] = {"flood alone": [], "flood beside": []}
            for number in range(options.rounds):
                base = 100 * (number + 1)
                found["alone"] += measure(http, stack, base, *measured)
                with flood(stack, number):
                    rates["flood alone"].append(rate_over(stack, lambda: time.sleep(2.0)))
                    values: list[float] = []
                    rates["flood beside"].append(
                        rate_over(
                            stack,
                            lambda b=base, v=values: v.extend(  # type: ignore[misc]
                                measure(http, stack, b + 50, *measured)
                            ),
                        )
                    )
                    found["beside"] += values
    for state, seconds in found.items():
        ms = sorted(1e3 * value for value in seconds)
        print(
            f"{options.tokens} tokens {state:7} p50 {statistics.median(ms):7.1f} ms, "
            f"p90 {ms[int(0.9 * (len(ms) - 1))]:7.1f}, from {ms[0]:.1f} to {ms[-1]:.1f} "
            f"({len(ms)} requests)"
        )
    ratio = statistics.median(found["beside"]) / statistics.median(found["alone"])
    print(f"beside / alone: {ratio:.2f}")
    for state, values in rates.items():
        each = ", ".join(f"{value:.0f}" for value in values)
        print(f"{state:12} {statistics.median(values):6.0f} tokens/s (rounds: {each})")


def new_tenant(stack: Stack, name: str) -> str:
    """Return a key of a new tenant."""
    environ = {**os.environ, "PAGODA_HOME": str(stack.home)}
    for arguments in (["tenants", "create", name], ["keys", "create", "--tenant", name]):
        done = subprocess.run(
            [PAGODA, *arguments], env=environ, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
    return done.stdout.strip()


def client(stack: Stack, key: str) -> httpx.Client:
    """Return a client with a key."""
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=stack.url, headers=headers, timeout=120)


def measure(
    http: httpx.Client, stack: Stack, base: int, num_requests: int, num_tokens: int
) -> list[float]:
    """Return the seconds of a round's requests, one after the other."""
    found = []
    for index in range(num_requests):
        time.sleep(PAUSE_SECONDS)
        found.append(ask(http, stack, base + index, num_tokens))
    return found


def ask(http: httpx.Client, stack: Stack, number: int, num_tokens: int) -> float:
    """Return the seconds that a completion took."""
    body = {
        "model": stack.model, "prompt": f"Speech {number}: what news, my lord?",
        "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    started = time.perf_counter()
    answer = http.post("/v1/completions", json=body)
    seconds = time.perf_counter() - started
    if answer.status_code != 200:
        raise RuntimeError(answer.text)
    assert answer.json()["usage"]["completion_tokens"] == num_tokens
    return seconds


@contextlib.contextmanager
def flood(stack: Stack, number: int) -> Iterator[None]:
    """Have the first tenant's large request run, and be over on return."""
    body = {
        "model": stack.model, "n": CHOICES, "max_tokens": FLOOD_TOKENS, "stream": True,
        "prompt": [f"Round {number}, act {act}: enter " for act in range(PROMPTS)],
        "temperature": 1, "seed": number, "ignore_eos": True,
    }  # fmt: skip
    url = f"{stack.url}/v1/completions"
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            READER,
            url,
            stack.api_key,
            json.dumps(body),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout is not None
        if (line := reader.stdout.readline()) != "begun\n":
            raise RuntimeError(f"the large request does not begin: {line}")
        time.sleep(SETTLE_SECONDS)  # its sequences fill all seats by then
        yield
        if reader.poll() is not None:
            raise RuntimeError(f"the large request ended: {reader.stdout.read()}")
    finally:
        reader.kill()
        reader.wait()
    time.sleep(SETTLE_SECONDS)


def rate_over(stack: Stack, work: Callable[[], object]) -> float:
    """Return the tokens per second that the decode worker made while `work` ran."""
    before, started = stack.metric("decode", GENERATED), time.perf_counter()
    work()
    return (stack.metric("decode", GENERATED) - before) / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
