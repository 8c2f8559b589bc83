"""Prompts of all lengths from the demo's corpus, and their undisturbed greedy text."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from chaos.streams import Outcome, Prompt, Stream, ask

CORPUS = Path(__file__).parents[2] / "demo" / "tinyshakespeare.txt"
MIN_CHARACTERS, MAX_CHARACTERS = 40, 1200  # about 12 to 400 tokens
RECORD_WIDTH = 4


def draw_prompts(number: int, max_tokens: int, rng: random.Random) -> list[Prompt]:
    """Return distinct passages of the corpus, short and long ones."""
    corpus = CORPUS.read_text()
    starts = rng.sample(range(0, len(corpus) - MAX_CHARACTERS, MAX_CHARACTERS), number)
    lengths = (rng.randrange(MIN_CHARACTERS, MAX_CHARACTERS) for _ in starts)
    return [
        Prompt(corpus[start : start + length], max_tokens)
        for start, length in zip(starts, lengths, strict=True)
    ]


async def record(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    prompts: Sequence[Prompt],
    *,
    silence: float,
) -> dict[str, str]:
    """Return prompt -> greedy text of a system that nobody disturbs.

    Raises:
        RuntimeError: a stream did not end well even so.
    """
    turns = asyncio.Semaphore(RECORD_WIDTH)

    async def one(prompt: Prompt) -> tuple[str, str]:
        async with turns:
            stream = Stream(prompt)
            await ask(session, url, model, stream, silence=silence)
        if stream.outcome is not Outcome.OK:
            raise RuntimeError(f"undisturbed, yet {stream.outcome}: {stream.error}")
        return prompt.text, stream.texts[0]

    async with asyncio.TaskGroup() as tasks:
        done = [tasks.create_task(one(prompt)) for prompt in prompts]
    return dict(task.result() for task in done)
