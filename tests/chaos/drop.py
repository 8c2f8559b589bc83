"""Many clients that go away at the same moment, a third of them while their prompt is computed."""

import asyncio
import contextlib
import random

import aiohttp
from support.stack import Stack

from chaos.prompts import CORPUS
from chaos.streams import Prompt, Stream, ask

START_SECONDS = 60.0
LATE_SECONDS = 0.1  # the last third has been asked for this long: its prompts are computed now
NUM_ANSWERING = 24  # of the others, at least; all together need more blocks than there are
CHARACTERS = 1200
NUM_TOKENS = 400


async def drop_streams(
    stack: Stack, session: aiohttp.ClientSession, number: int, rng: random.Random
) -> list[Stream]:
    """Start `number` streams, cancel them all at once, and return them."""
    corpus = CORPUS.read_text()
    starts = [rng.randrange(len(corpus) - CHARACTERS) for _ in range(number)]  # hardly cached
    streams = [Stream(Prompt(corpus[at : at + CHARACTERS], NUM_TOKENS)) for at in starts]
    num_early = number - number // 3
    tasks: list[asyncio.Task[None]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for stream in streams[:num_early]:
                tasks.append(group.create_task(_ask(session, stack, stream)))
            await _until_some_answer(streams[:num_early])
            for stream in streams[num_early:]:
                tasks.append(group.create_task(_ask(session, stack, stream)))
            await asyncio.sleep(LATE_SECONDS)
            for task in tasks:
                task.cancel()
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)
    return streams


async def _ask(session: aiohttp.ClientSession, stack: Stack, stream: Stream) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await ask(session, stack.url, stack.model, stream, silence=START_SECONDS)


async def _until_some_answer(streams: list[Stream]) -> None:
    """Wait until some of them have a token; the others wait for their turn."""
    async with asyncio.timeout(START_SECONDS):
        while sum(bool(s.num_chunks) for s in streams) < NUM_ANSWERING:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # polled: what many tasks add to has no event
