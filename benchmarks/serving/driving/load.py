"""Drives an endpoint for the standard set with the machinery of `pagoda bench`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
import uvloop

from pagoda_cli.bench.client import Outcome, RequestClient
from pagoda_cli.bench.config import BenchConfig
from pagoda_cli.bench.prompts import SyntheticPrompts
from pagoda_cli.bench.results import Results
from pagoda_cli.bench.runner import BenchRun
from pagoda_cli.bench.vocabulary import Vocabulary
from pagoda_cli.bench.workload import LengthRange, PlannedRequest
from pagoda_cli.endpoint import Endpoint

REQUEST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop of greedy completions, sent as token ids, that run to their last token."""

    concurrency: int
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0  # shared by all, in front of each prompt

    def prompt_seed(self, seed: int) -> int:
        """Return the seed of its prompts: loads of one repetition must not cache for each other."""
        return 1000 * seed + self.concurrency

    @property
    def text(self) -> str:
        """Describe it."""
        shared = f"{self.prefix_tokens} shared + " if self.prefix_tokens else ""
        return (
            f"concurrency {self.concurrency}, {self.num_requests} requests, "
            f"{shared}{self.prompt_tokens} prompt and {self.output_tokens} output tokens"
        )


def drive(
    endpoint: Endpoint, load: Load, *, tokenizer: Path, seed: int, keep_alive: bool = True
) -> Results:
    """Run one load. A new seed means new prompts: nothing of them is cached.

    Raises:
        BenchError: the warm-up request failed; nothing was measured.
    """
    config = BenchConfig(
        concurrency=load.concurrency,
        num_requests=load.num_requests,
        prompt_tokens=LengthRange(load.prompt_tokens, load.prompt_tokens),
        output_tokens=LengthRange(load.output_tokens, load.output_tokens),
        prefix_tokens=load.prefix_tokens,
        ignore_eos=True,
        send_ids=True,
        seed=load.prompt_seed(seed),
        tokenizer=tokenizer,
        timeout_seconds=REQUEST_SECONDS,
        num_warmup=1,
        keep_alive=keep_alive,
    )
    return uvloop.run(BenchRun(config, endpoint).run())


def batch_prompts(load: Load, *, tokenizer: Path, seed: int) -> list[list[int]]:
    """Return the very prompts that `drive` sends with this load and seed."""
    maker = SyntheticPrompts(
        Vocabulary.from_tokenizer_file(tokenizer), seed=load.prompt_seed(seed), send_ids=True
    )
    requests = (
        PlannedRequest(index, load.prompt_tokens, load.output_tokens)
        for index in range(load.num_requests)
    )
    return [list(map(int, maker.prompt(request))) for request in requests]


def prefix_outcomes(
    endpoint: Endpoint, *, tokenizer: Path, seed: int, num_prefix: int, num_unique: int, count: int
) -> list[Outcome]:
    """Send `count` requests one after the other that share a prefix the server never saw before."""
    maker = SyntheticPrompts(
        Vocabulary.from_tokenizer_file(tokenizer),
        seed=seed,
        num_prefix_tokens=num_prefix,
        send_ids=True,
    )

    async def send_all() -> list[Outcome]:
        async with aiohttp.ClientSession() as session:
            client = RequestClient(
                session, endpoint, path="completions", timeout_seconds=REQUEST_SECONDS
            )
            outcomes = []
            for index in range(count):
                prompt = maker.prompt(PlannedRequest(index, num_unique, 8))
                body = {
                    "model": endpoint.model,
                    "prompt": prompt,
                    "max_tokens": 8,
                    "temperature": 0,
                    "ignore_eos": True,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
                outcomes.append(await client.send(orjson.dumps(body)))
                await asyncio.sleep(0)
            return outcomes

    return uvloop.run(send_all())
