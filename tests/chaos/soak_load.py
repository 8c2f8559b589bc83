"""What clients do all day: short and long prompts, n > 1, and many that change their mind."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from chaos.streams import Outcome, Prompt, Stream, ask

ABORTED_SHARE = 0.3
EARLY_SHARE = 0.5  # of those that abort: before the first token, while the prompt is computed
EARLY_SECONDS = 0.15
SILENCE_SECONDS = 90.0
NUM_CHOICES = (1, 1, 1, 2, 4)
MIN_TOKENS = 4


@dataclass(slots=True)
class SoakLoad:
    """Clients that ask one after the other; counts how it ended."""

    session: aiohttp.ClientSession
    url: str
    model: str
    prompts: Sequence[Prompt]
    expected: Mapping[str, str]  # prompt -> greedy text of `max_tokens` tokens, undisturbed
    rng: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    num_early_aborts: int = 0

    async def run(self, num_clients: int, seconds: float) -> None:
        """Run that many clients for that long; requests in flight come to their end."""
        until = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for _ in range(num_clients):
                tasks.create_task(self._client(until))

    async def _client(self, until: float) -> None:
        while asyncio.get_running_loop().time() < until:
            whole = self.rng.choice(self.prompts)
            stream = Stream(
                Prompt(
                    whole.text,
                    self.rng.randint(MIN_TOKENS, whole.max_tokens),
                    self.rng.choice(NUM_CHOICES),
                )
            )
            if self.rng.random() < ABORTED_SHARE:
                await self._abort(stream)
            else:
                await ask(self.session, self.url, self.model, stream, silence=SILENCE_SECONDS)
            self._count(stream)

    async def _abort(self, stream: Stream) -> None:
        """Ask, and go away: at once, or after some of the answer."""
        is_early = self.rng.random() < EARLY_SHARE
        num_chunks = self.rng.randint(1, stream.prompt.max_tokens)
        asking = asyncio.create_task(
            ask(self.session, self.url, self.model, stream, silence=SILENCE_SECONDS)
        )
        try:
            if is_early:
                await asyncio.sleep(self.rng.uniform(0, EARLY_SECONDS))
                self.num_early_aborts += not stream.num_chunks
            else:
                while stream.num_chunks < num_chunks and not asking.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking

    def _count(self, stream: Stream) -> None:
        whole = self.expected[stream.prompt.text]
        # A last character that is not whole yet comes out as a replacement one.
        texts = (text.rstrip("\N{REPLACEMENT CHARACTER}") for text in stream.texts.values())
        if not all(whole.startswith(text) for text in texts):
            stream.outcome = Outcome.WRONG
        self.outcomes[str(stream.outcome)] += 1
        if stream.outcome not in (Outcome.OK, Outcome.ABORTED):
            self.problems.append(f"{stream.request_id} {stream.outcome}: {stream.error}")
