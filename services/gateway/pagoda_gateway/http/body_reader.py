"""The bytes of request bodies: how many each may have, and how long it may take.

All share one budget of bytes. Knows nothing of what is in them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect, Request

from pagoda_gateway.body_budget import BodyBudget
from pagoda_gateway.errors import BodyTooLargeError, SlowBodyError
from pagoda_gateway.gateway import Gateway

MIN_BYTES_PER_SECOND = 65_536
MAX_DISCARDED_BYTES = 64 << 20


class BodyReader:
    """Reads bodies within limits of size, time and the sum of all of them."""

    def __init__(self, budget: BodyBudget, *, max_bytes: int, timeout_seconds: float) -> None:
        """Set the limits.

        Args:
            budget: of all bodies that are being read or worked on.
            max_bytes: of one body.
            timeout_seconds: a body may take so long, and a second more for each 64 KiB that came.
        """
        self._budget = budget
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds

    @classmethod
    def of(cls, gateway: Gateway) -> "BodyReader":
        """Return the reader of a gateway's requests."""
        settings = gateway.settings
        return cls(
            gateway.bodies,
            max_bytes=settings.max_body_bytes,
            timeout_seconds=settings.body_timeout_seconds,
        )

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield a request's body; its bytes count against the budget until the block ends.

        Raises:
            BodyTooLargeError, SlowBodyError, UnavailableError: over one of the limits.
            starlette.requests.ClientDisconnect: the client left while it sent.
        """
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isascii() and declared.isdigit() else 0
        if size > self._max_bytes and request.headers.get("expect", "").lower() == "100-continue":
            raise self._too_large(size)
        chunks = bytearray()
        num_received = 0

        def take(chunk: bytes) -> None:
            """Keep a chunk; drop it over the limit.

            Who reads no answer before all is sent would get a reset instead of one.
            """
            nonlocal size, num_received
            num_received += len(chunk)
            size = max(size, num_received)
            if num_received > self._max_bytes + MAX_DISCARDED_BYTES:
                raise self._too_large(size)
            if size <= self._max_bytes:
                self._budget.take(len(chunk))
                chunks.extend(chunk)

        try:
            try:
                await self._each_chunk(request, take)
            except SlowBodyError:
                if size <= self._max_bytes:
                    raise
            if size > self._max_bytes:
                raise self._too_large(size)
            yield bytes(chunks)
        finally:
            self._budget.free(len(chunks))

    async def _each_chunk(self, request: Request, take: Callable[[bytes], None]) -> None:
        """Give each chunk to `take`; the deadline moves on with what arrives."""
        loop = asyncio.get_running_loop()
        deadline, size = loop.time() + self._timeout_seconds, 0
        try:
            async with asyncio.timeout_at(deadline) as timer:
                while True:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    take(chunk)
                    if not message.get("more_body"):
                        return
                    timer.reschedule(deadline + size / MIN_BYTES_PER_SECOND)
        except TimeoutError:
            raise SlowBodyError(
                f"{size} bytes of the body came in time; it may take {self._timeout_seconds:g} s "
                f"and a second for each {MIN_BYTES_PER_SECOND} bytes. Send it faster."
            ) from None

    def _too_large(self, size: int) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the body has {size} bytes or more; the limit is {self._max_bytes} bytes"
        )
