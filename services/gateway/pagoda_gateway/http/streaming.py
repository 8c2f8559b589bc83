"""Writes one generation to one client over ASGI: a stream of events, or one body.

Knows OpenAI's framing, not what is in a chunk. Says which tokens were delivered.
"""

import asyncio

from starlette.types import Send

from pagoda_gateway.http import wire
from pagoda_gateway.openai.responses import ResponseSerializer
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output_sequence import OutputSequence


class GenerationWriter:
    """Answers one client."""

    def __init__(
        self,
        generation: Generation,
        serializer: ResponseSerializer,
        send: Send,
        *,
        keepalive_seconds: float,
    ) -> None:
        """Prepare to answer.

        Args:
            generation: what to answer.
            serializer: how the endpoint writes it.
            send: ASGI.
            keepalive_seconds: silence that a stream may have.
        """
        self._generation = generation
        self._serializer = serializer
        self._send = send
        self._keepalive_seconds = keepalive_seconds
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
            await wire.send_error(self._send, generation.failure)
            return
        await wire.send_json(self._send, 200, self._serializer.body())
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
                    await wire.send_error(self._send, failure)
                    return
                events += [wire.event(failure.body()), wire.DONE]
            elif is_over:
                usage = self._serializer.usage_chunk()
                if usage is not None:
                    events.append(wire.event(usage))
                events.append(wire.DONE)
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
            chunk = self._serializer.chunk(sequence, delta)
            if chunk is not None:
                events.append(wire.event(chunk))
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
                await self._write(wire.keepalive(self._generation.stage), is_last=False)
        changed.clear()

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        if not self.is_started:
            self.is_started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": wire.EVENT_STREAM_HEADERS}
            )
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
