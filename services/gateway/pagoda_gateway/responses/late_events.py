"""Events of a response that another gateway makes, or that has ended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pagoda_gateway import sse
from pagoda_gateway.errors import InvalidRequestError, NotFoundError, UnavailableError
from pagoda_gateway.responses.event_log import KeptEvents
from pagoda_gateway.responses.serializer import numbered

Found = tuple[dict[str, Any], dict[str, Any] | None]
"""A response, and its log as `EventLog.packed` returned it."""


async def late_events(
    find: Callable[[], Awaitable[Found]], after: int, *, look_seconds: float
) -> AsyncIterator[bytes]:
    """Wait until a response has ended, and yield its events whose number is above `after`.

    Args:
        find: returns what there is of it now. What it raises is waited for, or ends the events.
        after: a number.
        look_seconds: from a look to the next; a comment says each time that this goes on.
    """
    while True:
        try:
            response, packed = await find()
        except NotFoundError:  # deleted, or expired
            return
        except UnavailableError:  # the log says so
            pass
        else:
            if response["status"] not in ("queued", "in_progress"):
                break
        yield sse.comment("keepalive")
        await asyncio.sleep(look_seconds)
    with contextlib.suppress(InvalidRequestError):  # forgotten: as a connection that breaks
        yield ended_events(response, packed, after)


def ended_events(response: dict[str, Any], packed: dict[str, Any] | None, after: int) -> bytes:
    """Return the events of a response that has ended whose number is above `after`.

    Raises:
        InvalidRequestError: some of them are forgotten.
    """
    if response["status"] == "cancelled":
        return b""
    events = KeptEvents(packed)
    found = events.after(after)
    last = {"type": f"response.{response['status']}", "response": response}
    # What a gateway that died had sent is not known, nor what there was no room for.
    number = events.num_events or after + 1
    return found + (numbered(last, number) if number > after else b"")
