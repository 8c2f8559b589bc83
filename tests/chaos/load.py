"""Keeps a number of streams in flight and compares each with its undisturbed text."""

import asyncio
import random
from collections.abc import Mapping, Sequence

import aiohttp

from chaos.streams import Outcome, Prompt, Stream, ask

REFUSED_SECONDS = 0.5  # before one that was refused asks again


class Load:
    """Streams one after the other on each of `width` places, until cancelled."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        prompts: Sequence[Prompt],
        expected: Mapping[str, str],
        width: int,
        silence: float,
        rng: random.Random,
    ) -> None:
        self.in_flight: set[Stream] = set()
        self.ended: list[Stream] = []
        self.expected = expected
        self._session, self._url, self._model = session, url, model
        self._prompts, self._width, self._silence, self._rng = prompts, width, silence, rng
        self._is_stopping = False

    async def run(self) -> None:
        """Go on until `stop`; then every stream in flight comes to its end."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._width):
                tasks.create_task(self._place())

    def stop(self) -> None:
        """Ask for no more."""
        self._is_stopping = True

    async def full(self) -> None:
        """Wait until every place has a stream that answers."""
        while not self._is_stopping:
            answering = sum(1 for stream in self.in_flight if stream.num_chunks)
            if answering >= 0.8 * self._width:
                return
            await asyncio.sleep(0.02)

    async def over(self) -> None:
        """Wait until every stream that is in flight now has ended."""
        for stream in list(self.in_flight):
            await stream.over.wait()

    async def _place(self) -> None:
        while not self._is_stopping:
            stream = Stream(self._rng.choice(self._prompts))
            self.in_flight.add(stream)
            try:
                await ask(self._session, self._url, self._model, stream, silence=self._silence)
            finally:
                self.in_flight.discard(stream)
                self._compare(stream)
                self.ended.append(stream)
            if stream.outcome is Outcome.REFUSED:
                await asyncio.sleep(REFUSED_SECONDS)

    def _compare(self, stream: Stream) -> None:
        """Mark other text than undisturbed; what came of an unfinished one is its beginning."""
        expected, got = self.expected[stream.prompt.text], stream.texts.get(0, "")
        if stream.outcome is Outcome.OK and got != expected:
            stream.outcome, stream.error = Outcome.WRONG, "text differs"
        elif not expected.startswith(got):
            stream.outcome = Outcome.WRONG
            stream.error = f"{stream.error}; and what came differs"
