"""Writes one generation to one client over ASGI: a stream of events, or one body.

Knows OpenAI's framing, not what is in a chunk. Says which tokens were delivered.
"""

import asyncio
import logging

import orjson
from starlette.types import Receive, Send

from pagoda_gateway.errors import GatewayError
from pagoda_gateway.http import sse
from pagoda_gateway.openai.replies import Reply
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output_sequence import OutputSequence

logger = logging.getLogger(__name__)

_STREAM_HEADERS = [
    (b"content-type", sse.CONTENT_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx pass events on at once
]


async def send_json(
    send: Send, status: int, payload: object, headers: dict[str, str] | None = None
) -> None:
    """Send a whole JSON answer."""
    body = orjson.dumps(payload)
    raw = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    raw += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: GatewayError) -> None:
    """Send an error as the whole answer."""
    await send_json(send, error.status, error.body(), error.headers())


async def watch_disconnect(receive: Receive, generation: Generation) -> None:
    """Stop the generation when the client goes away; the body has been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.disconnect()


class Responder:
    """Answers one client."""

    def __init__(
        self,
        generation: Generation,
        reply: Reply,
        send: Send,
        *,
        keepalive_seconds: float,
        include_usage: bool,
    ) -> None:
        """Prepare to answer.

        Args:
            generation: what to answer.
            reply: how the endpoint writes it.
            send: ASGI.
            keepalive_seconds: silence that a stream may have.
            include_usage: the stream ends with a usage chunk.
        """
        self._generation = generation
        self._reply = reply
        self._send = send
        self._keepalive_seconds = keepalive_seconds
        self._include_usage = include_usage
        self.is_started = False
        self.is_complete = False  # the client got the end of a good answer

    async def whole(self) -> None:
        """Wait for the end, then send one body, or the error."""
        generation = self._generation
        while not generation.is_over:
            await generation.changed.wait()
            generation.changed.clear()
        if generation.is_disconnected:
            return
        self.is_started = True
        if generation.failure is not None:
            await send_error(self._send, generation.failure)
            return
        await send_json(self._send, 200, self._reply.body())
        self.is_complete = not generation.is_disconnected

    async def stream(self) -> None:
        """Send events as they come. A failure before the first has its own HTTP status."""
        generation = self._generation
        while True:
            await self._wait()
            if generation.is_disconnected:
                return
            is_over = generation.is_over
            events, progress = self._read()
            failure = generation.failure
            if failure is not None:
                if not self.is_started:
                    self.is_started = True
                    await send_error(self._send, failure)
                    return
                events += [sse.event(failure.body()), sse.DONE]
            elif is_over:
                if self._include_usage:
                    events.append(sse.event(self._reply.usage_chunk()))
                events.append(sse.DONE)
            if events:
                await self._write(b"".join(events), is_last=is_over)
            if not generation.is_disconnected:
                for sequence, num_tokens in progress:
                    sequence.num_delivered = num_tokens
                self.is_complete = is_over and failure is None
            if is_over:
                return

    def _read(self) -> tuple[list[bytes], list[tuple[OutputSequence, int]]]:
        """Return everything new as events, and how many tokens of each sequence they cover."""
        events, progress = [], []
        for sequence in self._generation.sequences:
            delta = sequence.read()
            if delta is None:
                continue
            chunk = self._reply.chunk(sequence, delta)
            if chunk is not None:
                events.append(sse.event(chunk))
                progress.append((sequence, len(sequence.token_ids)))
        return events, progress

    async def _wait(self) -> None:
        """Return when something changed; keep the connection alive meanwhile."""
        changed = self._generation.changed
        while not changed.is_set():
            try:
                async with asyncio.timeout(self._keepalive_seconds):
                    await changed.wait()
            except TimeoutError:
                await self._write(sse.keepalive(self._generation.stage), is_last=False)
        changed.clear()

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        if not self.is_started:
            self.is_started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
            )
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
