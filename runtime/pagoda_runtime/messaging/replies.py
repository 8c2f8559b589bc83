"""Answers to requests over one NATS connection, each told to whoever waits for it.

The client's own `request` draws random bytes and waits with a timer of its own, which swallows
cancellations (`tasks.cancellation`). Here the caller's deadline is the only one, and numbers under
a random prefix, which nobody can guess, tell requests apart.
"""

import asyncio
import itertools

import nats.errors
from nats.aio.client import NO_RESPONDERS_STATUS, Client
from nats.aio.msg import Msg
from nats.js.api import Header


class Replies:
    """Waits for answers; `open` it once the client is connected. It survives reconnections."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._prefix = ""
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}

    async def open(self) -> None:
        """Subscribe to answers."""
        self._prefix = f"{self._client.new_inbox()}."
        await self._client.subscribe(f"{self._prefix}*", cb=self._on_reply)

    async def ask(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> Msg:
        """Send a request and return its answer; who calls sets a deadline.

        Raises:
            nats.errors.NoRespondersError: nobody listens.
            nats.errors.Error: the request cannot be sent.
        """
        reply = f"{self._prefix}{next(self._numbers)}"
        waiting: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = waiting
        try:
            await self._client.publish(subject, payload, reply=reply, headers=headers)
            answer = await waiting
        finally:
            del self._waiting[reply]
        if answer.headers and answer.headers.get(Header.STATUS) == NO_RESPONDERS_STATUS:
            raise nats.errors.NoRespondersError
        return answer

    async def _on_reply(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject)
        if waiting is not None and not waiting.done():  # else nobody waits any more
            waiting.set_result(message)
