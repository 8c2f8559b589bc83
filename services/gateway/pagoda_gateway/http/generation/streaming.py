"""Writes one generation to one client: a stream of events, or one body.

Knows no API's framing: that is the serializer's. Says which tokens were delivered. Nearly all
events of a stream are written by a callback, once a step: see `BodyPipe`. A task has the others:
the first, the last, those that wait for a slow reader.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import Send

from pagoda_gateway.errors import GatewayError, InternalError
from pagoda_gateway.http import wire
from pagoda_gateway.http.body_pipe import BodyPipe
from pagoda_gateway.openai.serializer import Serializer
from pagoda_gateway.sequences.after_step import AfterStep
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output.sequence import OutputSequence

logger = logging.getLogger(__name__)

RECEIPT_HEADER = "x-pagoda-receipt"


class GenerationWriter:
    """Answers one client."""

    def __init__(
        self,
        generation: Generation,
        serializer: Serializer,
        send: Send,
        pipe: BodyPipe | None,
        *,
        after_step: AfterStep,
        receipt: Callable[[], dict[str, Any]] | None,
        keepalive_seconds: float,
    ) -> None:
        """Prepare to answer.

        Args:
            generation: what to answer.
            serializer: how the endpoint writes it.
            send: ASGI.
            pipe: of the same connection; None: everything goes by `send`.
            after_step: of the event loop.
            receipt: makes the receipt of an answer that is whole; None: nobody wants it.
            keepalive_seconds: silence that a stream may have.
        """
        self._generation = generation
        self._serializer = serializer
        self._send = send
        self._pipe = pipe
        self._after_step = after_step
        self._receipt = receipt
        self._keepalive_seconds = keepalive_seconds
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        self._is_silent = False  # for so long that the connection needs a sign of life
        self._is_sending = False  # the task is: nothing may overtake it
        self._is_flush_due = False
        self._is_single = len(generation.sequences) == 1  # a step brings it one frame
        self._defect: GatewayError | None = None  # something new could not be written
        self.is_started = False
        self.is_complete = False  # the client got the end of a good answer

    async def whole(self) -> None:
        """Wait for the end, then send one body, or the error."""
        generation = self._generation
        generation.on_progress = self._note_end
        while not generation.is_over or not self._may_tell():
            await generation.changed.wait()
            generation.changed.clear()
        if generation.is_disconnected:
            return
        self.is_started = True
        if generation.failure is not None:
            await self._refuse(generation.failure)
            return
        headers = _receipt_header(self._receipt) if self._receipt else []
        await wire.send_json_parts(self._send, self._serializer.parts(), headers)
        _note_delivered([(s, len(s.token_ids)) for s in generation.sequences])
        self.is_complete = not generation.is_disconnected

    async def stream(self) -> None:
        """Send events as they come. A failure before the first has its own HTTP status."""
        self._timer = self._loop.call_later(self._keepalive_seconds, self._watch_silence)
        if self._pipe is not None:
            self._generation.on_progress = self._flush_soon
        try:
            await self._stream()
        finally:
            self._timer.cancel()
            del self._timer  # it has this writer

    async def _stream(self) -> None:
        generation = self._generation
        while True:
            await self._wait()
            if generation.is_disconnected:
                return
            if not self._may_tell():
                continue
            events, progress = self._read()
            is_over = generation.is_over
            failure = generation.failure or self._defect
            if failure is not None:
                if not self.is_started:
                    self.is_started = True
                    await self._refuse(failure)
                    return
                events += self._serializer.failure_events(failure)
            elif is_over:
                events += await self._end_events()
            if events:
                await self._write(b"".join(events), is_last=is_over)
            if not generation.is_disconnected:
                _note_delivered(progress)
                self.is_complete = is_over and failure is None and self._defect is None
            if is_over:
                return

    async def _end_events(self) -> list[bytes]:
        """Return what ends the stream: that it is good, or could not be said to be."""
        try:
            receipt = self._receipt() if self._receipt else None
            return await self._serializer.end_events(receipt)
        except Exception:
            logger.exception("request %s: its end", self._generation.identity.request_id)
            self._defect = InternalError("the gateway failed; its log has the details")
            return self._serializer.failure_events(self._defect)

    def _may_tell(self) -> bool:
        """Whether the client may hear how it goes: what it gets is accounted for, or it failed."""
        generation = self._generation
        return generation.is_opened or generation.is_disconnected or generation.failure is not None

    def _note_end(self) -> None:
        if self._generation.is_over:
            self._generation.changed.set()

    def _flush_soon(self) -> None:
        """Write what is new: of several choices once all of the step was taken in, in one write."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._after_step.call(self._flush, can_be_now=self._is_single)

    def _flush(self) -> None:
        """Write what is new, or leave it to the task."""
        self._is_flush_due = False
        generation, pipe = self._generation, self._pipe
        assert pipe is not None, "nobody else is called"
        is_ours = self.is_started and generation.is_opened and not self._is_sending
        if not is_ours or generation.is_over or not pipe.is_open:
            generation.changed.set()
            return
        events, progress = self._read()
        if events:
            pipe.write(events[0] if len(events) == 1 else b"".join(events))
            self._written_at = self._loop.time()
        _note_delivered(progress)

    async def _refuse(self, error: GatewayError) -> None:
        await wire.send_error(self._send, error, self._serializer.error_body(error))

    def _read(self) -> tuple[list[bytes], list[tuple[OutputSequence, int]]]:
        """Return everything new as events, and how many tokens of each sequence they cover.

        What cannot be written ends the generation: without it the rest would be another text.
        """
        if self._defect is not None:
            return [], []
        try:
            return self._new_events()
        except Exception:
            logger.exception("request %s: its events", self._generation.identity.request_id)
            self._defect = InternalError("the gateway failed; its log has the details")
            self._generation.fail(self._defect, reason="client_disconnect")
            return [], []

    def _new_events(self) -> tuple[list[bytes], list[tuple[OutputSequence, int]]]:
        events: list[bytes] = []
        progress = []
        for sequence in self._generation.sequences:
            text = sequence.read_text()
            if text is not None:  # as nearly always
                if new_events := self._serializer.text_events(sequence, text):
                    events += new_events
                    progress.append((sequence, sequence.num_shown))
                continue
            delta = sequence.read()
            if delta is None:
                continue
            new_events = self._serializer.events(sequence, delta)
            events += new_events
            if new_events or delta.finish_reason:
                progress.append((sequence, sequence.num_shown))
        return events, progress

    async def _wait(self) -> None:
        """Return when something changed, or silence was broken."""
        changed = self._generation.changed
        await changed.wait()
        changed.clear()
        if self._is_silent:
            self._is_silent = False
            await self._write(self._serializer.keepalive(self._generation.stage), is_last=False)

    def _watch_silence(self) -> None:
        """Look again when silence would be too long; a deadline for each token costs more."""
        due = self._written_at + self._keepalive_seconds
        if self._loop.time() >= due:
            self._is_silent = True
            self._generation.changed.set()
            due = self._loop.time() + self._keepalive_seconds
        self._timer = self._loop.call_at(due, self._watch_silence)

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        self._written_at = self._loop.time()
        self._is_sending = True
        if not self.is_started:
            self.is_started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": wire.EVENT_STREAM_HEADERS}
            )
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        self._is_sending = False


def _receipt_header(receipt: Callable[[], dict[str, Any]]) -> list[tuple[bytes, bytes]]:
    return [(RECEIPT_HEADER.encode(), wire.header_json(receipt()))]


def _note_delivered(progress: list[tuple[OutputSequence, int]]) -> None:
    for sequence, num_tokens in progress:
        sequence.note_delivered(num_tokens)
