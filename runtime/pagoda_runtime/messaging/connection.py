"""The NATS connection itself: opening, coming back, the barrier, what the client reports."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import nats.errors
from nats.aio.msg import Msg

from pagoda_runtime.errors import BusConnectError, BusDisconnectedError, BusError
from pagoda_runtime.messaging.client import DirectClient
from pagoda_runtime.messaging.codec import kind_of
from pagoda_runtime.messaging.permissions import inbox_prefix
from pagoda_runtime.messaging.replies import Replies
from pagoda_runtime.telemetry.metrics import BUS_DROPPED, BUS_RECONNECTS

logger = logging.getLogger(__name__)

BARRIER_SECONDS = 10.0
CLOSE_SECONDS = 2.0
ECHO_SECONDS = 1.0  # an echo can get lost in an outage
LOOKUP_PAUSE_SECONDS = 0.5
MAX_UNSENT_BYTES = 8 << 20


class Connection:
    """One connection; after `open` it comes back by itself until `close`."""

    def __init__(
        self, url: str, *, user: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.client = DirectClient()
        self.replies = Replies(self.client)
        self._url = url
        self._user = user
        self._clock = clock
        self._lost_at: float | None = None
        self._connected = asyncio.Event()
        self._has_connected = False
        self._is_closing = False
        self._last_error = ""
        self._echo_subject = f"{inbox_prefix(user)}.echo.{secrets.token_hex(12)}"
        self._echoes: dict[bytes, asyncio.Future[None]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up now."""
        return self._connected.is_set() and self.client.is_connected

    @property
    def lost_seconds(self) -> float:
        """How long the connection has been down; 0 while it is up, and before `open`."""
        return 0.0 if self._lost_at is None else self._clock() - self._lost_at

    @property
    def is_up(self) -> bool:
        """Whether `wait` would return at once."""
        return self._connected.is_set()

    async def wait(self) -> None:
        """Return once the connection is up."""
        await self._connected.wait()

    async def open(self, name: str, token: str, timeout_seconds: float) -> None:
        """Connect, trying again until the time is over; a refused token ends it at once.

        The token is the password where there is a user.

        Raises:
            BusConnectError: no connection.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._until_name_is_known()
                await self._connect(name, token)
        except TimeoutError:
            cause = self._last_error or "no answer"
            raise BusConnectError(self._url, timeout_seconds, cause) from None
        self._has_connected = True
        self._connected.set()
        await self.client.subscribe(self._echo_subject, cb=self._on_echo)
        await self.replies.open()

    async def _connect(self, name: str, token: str) -> None:
        try:
            await self.client.connect(
                servers=[self._url],
                name=name,
                user=self._user or None,
                password=(token or None) if self._user else None,
                token=None if self._user else (token or None),
                inbox_prefix=inbox_prefix(self._user),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                connect_timeout=2,
                ping_interval=5,
                max_outstanding_pings=2,
                pending_size=MAX_UNSENT_BYTES,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
            )
        except BaseException:
            await self.client.close()
            raise

    async def _until_name_is_known(self) -> None:
        """Look the server up: the client gives up a slow look-up, whose failure nobody hears."""
        parts = urlsplit(self._url)
        while True:
            try:
                loop = asyncio.get_running_loop()
                await asyncio.shield(loop.getaddrinfo(parts.hostname, parts.port))
                return
            except (OSError, UnicodeError) as error:  # the latter: it can be no host's
                self._note_before_connected(error)
                await asyncio.sleep(LOOKUP_PAUSE_SECONDS)

    def _note_before_connected(self, error: Exception) -> None:
        is_first, self._last_error = not self._last_error, str(error) or type(error).__name__
        if is_first:
            logger.warning("no connection to NATS at %s yet: %s", self._url, self._last_error)

    def begin_closing(self) -> None:
        """Report no outage from now on."""
        self._is_closing = True

    async def close(self) -> None:
        """Deliver what was published, then close."""
        if self.is_connected:
            with contextlib.suppress(BusError):
                await self.barrier()
        self._connected.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.client.close()

    async def barrier(self) -> None:
        """Return when the server has processed everything sent before on this connection.

        The client's own flush() is no barrier: its PING can overtake commands still in the buffer,
        and cancelling it breaks the connection. A message to ourselves cannot overtake anything.

        Raises:
            BusDisconnectedError: no confirmation within 10 s.
        """
        try:
            async with asyncio.timeout(BARRIER_SECONDS):
                await self._echo()
        except (TimeoutError, nats.errors.Error) as error:
            raise BusDisconnectedError(
                f"NATS at {self._url} did not confirm within {BARRIER_SECONDS:g} s ({error!r})"
            ) from error

    async def answers(self, seconds: float) -> bool:
        """Tell whether the server sends a message back to us within that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._echo()
        except (TimeoutError, nats.errors.Error):
            return False
        return True

    async def _echo(self) -> None:
        key = secrets.token_bytes(8)
        self._echoes[key] = asyncio.get_running_loop().create_future()
        try:
            while not self._echoes[key].done():
                await self._connected.wait()
                await self.client.publish(self._echo_subject, key)
                await asyncio.wait([self._echoes[key]], timeout=ECHO_SECONDS)
        finally:
            del self._echoes[key]

    async def _on_echo(self, message: Msg) -> None:
        waiting = self._echoes.get(message.data)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _on_error(self, error: Exception) -> None:
        if not self._has_connected:
            if "authorization" in str(error).lower():
                raise BusConnectError(self._url, 0, str(error))
            self._note_before_connected(error)
            return
        before, self._last_error = self._last_error, str(error) or type(error).__name__
        if isinstance(error, nats.errors.SlowConsumerError):
            BUS_DROPPED.labels(kind_of(error.subject)).inc()
            logger.warning("dropped a message on %s: too many are waiting", error.subject)
        elif not self._is_closing and self._last_error != before:  # once, not at each attempt
            logger.warning("NATS: %s", self._last_error)

    async def _on_disconnected(self) -> None:
        self._connected.clear()
        self._lose()
        if not self._is_closing and self._has_connected:
            logger.warning("NATS at %s is gone; reconnecting", self._url)

    async def _on_reconnected(self) -> None:
        BUS_RECONNECTS.inc()
        self._last_error = ""
        self._lost_at = None
        self._connected.set()
        logger.info("reconnected to NATS at %s", self._url)

    async def _on_closed(self) -> None:
        self._connected.clear()
        self._lose()
        if not self._is_closing and self._has_connected:
            logger.error("NATS closed the connection for good: %s", self._last_error)

    def _lose(self) -> None:
        if self._lost_at is None and self._has_connected:
            self._lost_at = self._clock()
