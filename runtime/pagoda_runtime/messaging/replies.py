"""Answers to requests over one NATS connection, each told to whoever waits for it.

The client's own `request` draws random bytes and waits with a timer of its own, which swallows
cancellations (`tasks.cancellation`). Here the caller's deadline is the only one, and numbers under
a random prefix, which nobody can guess, tell requests apart.
"""

import asyncio
import itertools

import nats.errors
from nats.aio.client import NO_RESPONDERS_STATUS
from nats.aio.msg import Msg
from nats.js.api import Header

from pagoda_runtime.messaging.client import DirectClient


class Reply:
    """One answer that is waited for. Whoever has it awaits `message`, or calls `close`."""

    __slots__ = ("_timer", "_waiting", "future", "subject")

    def __init__(self, waiting: "dict[str, Reply]", subject: str, deadline: float) -> None:
        """Wait for what comes on `subject` until `deadline`, by the event loop's clock."""
        loop = asyncio.get_running_loop()
        self.subject = subject
        self.future: asyncio.Future[Msg] = loop.create_future()
        self._waiting = waiting
        self._timer = loop.call_at(deadline, self._expire)  # a third of what `timeout` calls
        waiting[subject] = self

    async def message(self) -> Msg:
        """Return the answer.

        Raises:
            TimeoutError: there is none by the deadline.
            nats.errors.NoRespondersError: nobody listens.
        """
        try:
            answer = await self.future
        finally:
            self.close()
        if answer.headers and answer.headers.get(Header.STATUS) == NO_RESPONDERS_STATUS:
            raise nats.errors.NoRespondersError
        return answer

    def close(self) -> None:
        """Wait no more."""
        self._timer.cancel()
        self._waiting.pop(self.subject, None)
        self.future.cancel()

    def _expire(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimeoutError())


class Replies:
    """Waits for answers; `open` it once the client is connected. It survives reconnections."""

    def __init__(self, client: DirectClient) -> None:
        self._client = client
        self._prefix = ""
        self._numbers = itertools.count()
        self._waiting: dict[str, Reply] = {}

    def __len__(self) -> int:
        """Answers that are waited for."""
        return len(self._waiting)

    async def open(self) -> None:
        """Subscribe to answers."""
        self._prefix = f"{self._client.new_inbox()}."
        await self._client.listen(f"{self._prefix}*", self._on_reply)

    def ask(self, subject: str, payload: bytes, headers: bytes, deadline: float) -> Reply:
        """Send a request, at once.

        Args:
            subject: whom to ask.
            payload: the request.
            headers: see `DirectClient.post`.
            deadline: of the answer, by the event loop's clock.

        Raises:
            nats.errors.Error: the request cannot be sent.
        """
        reply = Reply(self._waiting, f"{self._prefix}{next(self._numbers)}", deadline)
        try:
            self._client.post(subject, payload, reply=reply.subject, headers=headers)
        except BaseException:
            reply.close()
            raise
        return reply

    def _on_reply(self, message: Msg) -> None:
        reply = self._waiting.get(message.subject)
        if reply is not None and not reply.future.done():  # else nobody waits any more
            reply.future.set_result(message)
