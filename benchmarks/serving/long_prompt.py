"""What streams feel of a long prompt beside them: the time between tokens, alone and meanwhile.

The whole system with a random Llama of 126M parameters in bf16. Streams run all the time; one
prompt after the other is sent while they do, each new: nothing is cached.

    PYTHONPATH=tests python benchmarks/serving/long_prompt.py [--topology aggregated]
"""

import argparse
import asyncio
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
from running.models import model_folder
from support.stack import Stack, running_stack

WARM_SECONDS = 3.0  # until all streams run
ALONE_SECONDS = 5.0
PAUSE_SECONDS = 1.0
STREAM_PROMPT_TOKENS = 64
VOCAB_SIZE = 8000


def main() -> None:
    """Measure and print one line for each state."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--topology", default="aggregated")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--prompts", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        environ = {
            "PAGODA_MODEL": str(model_folder("small-8k", Path(home))),
            "PAGODA_DTYPE": "bfloat16",
            "PAGODA_TOPOLOGY": options.topology,
        }
        with running_stack(Path(home) / "home", environ) as stack:
            asyncio.run(measure(stack, options.streams, options.prompt_tokens, options.prompts))


async def measure(stack: Stack, num_streams: int, prompt_tokens: int, num_prompts: int) -> None:
    """Run the streams, and the prompts beside them; print what came of it."""
    rng = random.Random(1)
    limits = httpx.Limits(max_connections=num_streams + 1)
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    async with httpx.AsyncClient(
        base_url=stack.url, headers=headers, timeout=600, limits=limits
    ) as http:
        arrivals: list[list[float]] = [[] for _ in range(num_streams)]
        streams = [
            asyncio.create_task(keep_streaming(http, stack, rng, times)) for times in arrivals
        ]
        await asyncio.sleep(WARM_SECONDS)
        alone = [(time.perf_counter(), time.perf_counter() + ALONE_SECONDS)]
        await asyncio.sleep(ALONE_SECONDS)
        beside = []
        for _ in range(num_prompts):
            began, first = time.perf_counter(), list[float]()
            await stream(http, stack, prompt(rng, prompt_tokens), 1, first)
            beside.append((began, first[0]))
            await asyncio.sleep(PAUSE_SECONDS)
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    found = {"alone": gaps(arrivals, alone), "beside": gaps(arrivals, beside)}
    for state, values in found.items():
        p50, p99 = np.percentile(values, (50, 99)) * 1e3
        print(f"between tokens {state:6} p50 {p50:6.1f} ms, p99 {p99:6.1f} ms ({len(values)})")
    ratios = [
        np.percentile(found["beside"], p) / np.percentile(found["alone"], p) for p in (50, 99)
    ]
    print(f"beside / alone: p50 {ratios[0]:.2f}, p99 {ratios[1]:.2f}")
    seconds = ", ".join(f"{end - begin:.2f}" for begin, end in beside)
    print(f"first token of {prompt_tokens} prompt tokens after {seconds} s")


def prompt(rng: random.Random, num_tokens: int) -> list[int]:
    """Return a prompt that was never sent before."""
    return [rng.randrange(10, VOCAB_SIZE) for _ in range(num_tokens)]


async def keep_streaming(
    http: httpx.AsyncClient, stack: Stack, rng: random.Random, arrivals: list[float]
) -> None:
    """Stream one completion after the other."""
    while True:
        await stream(http, stack, prompt(rng, STREAM_PROMPT_TOKENS), 1000, arrivals)
        arrivals.append(float("nan"))  # what comes next is another stream's


async def stream(
    http: httpx.AsyncClient,
    stack: Stack,
    prompt_ids: list[int],
    max_tokens: int,
    arrivals: list[float],
) -> None:
    """Stream a completion and note when its tokens come."""
    body = {
        "model": stack.model, "prompt": prompt_ids, "max_tokens": max_tokens, "stream": True,
        "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                arrivals.append(time.perf_counter())


def gaps(arrivals: list[list[float]], spans: list[tuple[float, float]]) -> list[float]:
    """Return the seconds between tokens that came in one of the spans."""
    return [
        after - before
        for times in arrivals
        for before, after in pairwise(times)
        if any(begin <= before and after <= end for begin, end in spans)
    ]


if __name__ == "__main__":
    main()
