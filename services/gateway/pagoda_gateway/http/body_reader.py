"""The bytes of request bodies: how many each may have, and how long it may take.

All share one budget of bytes, and a thread for what is large. Knows nothing of what is in them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from pagoda_gateway.body_budget import BodyBudget, HeldBytes
from pagoda_gateway.errors import BodyTooLargeError, MediaTypeError, SlowBodyError, shorten
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body_pipe import has_whole_body
from pagoda_gateway.http.request_head import header
from pagoda_gateway.large_bodies import LargeBodies

MIN_BYTES_PER_SECOND = 65_536
LAST_LOOK_SECONDS = 0.1
MAX_DISCARDED_BYTES = 64 << 20


class BodyReader:
    """Reads bodies within limits of size, time and the sum of all of them.

    Attributes:
        large: where something is made of those that are large.
    """

    def __init__(
        self, budget: BodyBudget, large: LargeBodies, *, max_bytes: int, timeout_seconds: float
    ) -> None:
        """Set the limits.

        Args:
            budget: of all bodies that are being read or worked on.
            large: see the class.
            max_bytes: of one body.
            timeout_seconds: a body may take so long, and a second more for each 64 KiB that came.
        """
        self._budget = budget
        self.large = large
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds

    @classmethod
    def of(cls, gateway: Gateway) -> "BodyReader":
        """Return the reader of a gateway's requests."""
        settings = gateway.settings
        return cls(
            gateway.bodies,
            gateway.large_bodies,
            max_bytes=settings.max_body_bytes,
            timeout_seconds=settings.body_timeout_seconds,
        )

    def held(self) -> HeldBytes:
        """Return what one request's body will hold of the budget, nothing yet."""
        return HeldBytes(self._budget)

    async def read(self, request: Request, held: HeldBytes) -> bytes:
        """Return a request's body; its bytes count against the budget as long as they are `held`.

        Raises:
            BodyTooLargeError, SlowBodyError, UnavailableError: over one of the limits.
            starlette.requests.ClientDisconnect: the client left while it sent.
        """
        declared = header(request.scope, b"content-length")
        size = int(declared) if declared.isascii() and declared.isdigit() else 0
        if size > self._max_bytes and header(request.scope, b"expect").lower() == "100-continue":
            raise self._too_large(size)
        if has_whole_body(request.scope) and size <= self._max_bytes:
            chunk: bytes = (await request.receive())["body"]
            if len(chunk) > self._max_bytes:  # of a body that did not say so
                raise self._too_large(len(chunk))
            held.take(len(chunk))
            return chunk
        return await self._gather(request, held, size)

    async def _gather(self, request: Request, held: HeldBytes, size: int) -> bytes:
        """Return a body that comes in parts; `size` as it was declared, or 0.

        Over the limit parts are dropped: who reads no answer before all is sent would get a reset
        instead of one.
        """
        chunks = bytearray()
        num_received = 0
        try:
            async for chunk in body_chunks(request, self._timeout_seconds):
                num_received += len(chunk)
                size = max(size, num_received)
                if num_received > self._max_bytes + MAX_DISCARDED_BYTES:
                    raise self._too_large(size)
                if size <= self._max_bytes:
                    held.take(len(chunk))
                    chunks.extend(chunk)
        except SlowBodyError:
            if size <= self._max_bytes:
                raise
        if size > self._max_bytes:
            raise self._too_large(size)
        return bytes(chunks)

    def _too_large(self, size: int) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the body has {size} bytes or more; the limit is {self._max_bytes} bytes"
        )


def check_encoding(request: Request) -> None:
    """Refuse a compressed body: a limit of bytes would say little about what it becomes.

    Raises:
        MediaTypeError: it says that it is one.
    """
    encoding = header(request.scope, b"content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        raise MediaTypeError(
            f"content-encoding is {shorten(encoding)}; send the body uncompressed, without it"
        )


async def body_chunks(request: Request, timeout_seconds: float) -> AsyncIterator[bytes]:
    """Yield a body as it arrives; only the time that it is waited for counts.

    Raises:
        SlowBodyError: it took longer than so, and a second more for each 64 KiB that came.
        starlette.requests.ClientDisconnect: the client left while it sent.
    """
    if has_whole_body(request.scope):
        yield (await request.receive())["body"]
        return
    loop = asyncio.get_running_loop()
    waited, size, is_last = 0.0, 0, False
    while not is_last:
        started = loop.time()
        try:
            left = timeout_seconds + size / MIN_BYTES_PER_SECOND - waited
            message = await _received(request, left)
        except TimeoutError:
            raise SlowBodyError(
                f"{size} bytes of the body came in time; it may take {timeout_seconds:g} s "
                f"and a second for each {MIN_BYTES_PER_SECOND} bytes. Send it faster."
            ) from None
        waited += loop.time() - started
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        is_last = not message.get("more_body")
        yield chunk


async def _received(request: Request, seconds: float) -> Message:
    """Return what comes within that time; raise TimeoutError.

    Time passes while this process stands still, too: what has come by then has yet to be read.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await request.receive()
    async with asyncio.timeout(LAST_LOOK_SECONDS):
        return await request.receive()
