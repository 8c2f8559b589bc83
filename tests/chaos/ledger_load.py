"""Streams whose tokens are counted one by one as they arrive, spread over two gateways."""

import asyncio
import json
import random
from collections.abc import Sequence

import aiohttp

from chaos.ledger_check import End, Receivings
from chaos.prompts import CORPUS

PAUSE_SECONDS = 0.5  # before who was refused asks again
SILENCE_SECONDS = 60.0
CHARACTERS = 120


class LedgerLoad:
    """Keeps `width` streams in flight until told to stop."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        urls: Sequence[str],
        model: str,
        *,
        width: int,
        num_tokens: int,
        rng: random.Random,
    ) -> None:
        self.streams: list[Receivings] = []
        self.in_flight: set[Receivings] = set()
        self._session, self._urls, self._model = session, urls, model
        self._width, self._num_tokens, self._rng = width, num_tokens, rng
        self._corpus = CORPUS.read_text()
        self._is_stopping = False

    @property
    def num_served(self) -> int:
        """Streams that came to their end whole."""
        return sum(stream.end is End.DONE for stream in self.streams)

    async def run(self) -> None:
        """Go on until `stop`; then every stream comes to its end."""
        async with asyncio.TaskGroup() as tasks:
            for place in range(self._width):
                tasks.create_task(self._place(self._urls[place % len(self._urls)]))

    def stop(self) -> None:
        """Ask for no more."""
        self._is_stopping = True

    async def flowing(self, seconds: float = 60.0) -> None:
        """Wait until a fifth of the places have a stream that answers."""
        async with asyncio.timeout(seconds):
            while True:
                if 5 * sum(bool(s.num_tokens) for s in self.in_flight) >= self._width:
                    return
                await asyncio.sleep(0.02)

    async def _place(self, url: str) -> None:
        while not self._is_stopping:
            stream = Receivings()
            self.in_flight.add(stream)
            try:
                await self._ask(url, stream)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                stream.end = End.BROKEN if stream.request_id else End.REFUSED
                stream.detail = f"{type(error).__name__}: {error}"
            finally:
                self.in_flight.discard(stream)
                self.streams.append(stream)
            if stream.end is End.REFUSED:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self, url: str, stream: Receivings) -> None:
        start = self._rng.randrange(len(self._corpus) - CHARACTERS)
        body = {
            "model": self._model,
            "prompt": self._corpus[start : start + CHARACTERS],
            "max_tokens": self._rng.randint(1, self._num_tokens),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "logprobs": 0,  # names each token, so that they can be counted
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_SECONDS)
        async with self._session.post(
            f"{url}/v1/completions", json=body, timeout=timeout
        ) as response:
            stream.request_id = response.headers.get("x-pagoda-request-id", "") or (
                response.headers.get("x-request-id", "")
            )
            if response.status != 200:
                stream.detail = f"{response.status}: {(await response.text())[:200]}"
                stream.end = End.REFUSED
                return
            async for line in response.content:
                if line.startswith(b"data: "):
                    self._take(line[6:].strip(), stream)
        if stream.end is None:
            stream.end, stream.detail = End.BROKEN, "it ended without [DONE]"

    def _take(self, data: bytes, stream: Receivings) -> None:
        if data == b"[DONE]":
            stream.end = stream.end or End.DONE
            return
        chunk = json.loads(data)
        if "error" in chunk:
            stream.end, stream.detail = End.FAILED, json.dumps(chunk["error"])[:200]
            return
        for choice in chunk["choices"]:
            if choice.get("logprobs"):
                stream.num_tokens += len(choice["logprobs"]["tokens"])
