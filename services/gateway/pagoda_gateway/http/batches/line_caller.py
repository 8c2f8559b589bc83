"""Lines of batches as requests to this process's own application, behind its doorkeeper.

So a line has the bodies, limits, errors, accounts and traces of its route, whatever they become.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import orjson
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.batches.line_request import LineAnswer, LineCall
from pagoda_gateway.errors import AuthenticationError
from pagoda_gateway.http.caller import Caller
from pagoda_gateway.http.error_shape import error_body
from pagoda_gateway.http.wire import is_for_now

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1.0
KEY_ERROR = AuthenticationError("The API key that created this batch is revoked or expired.")


class LineCaller:
    """Asks one application."""

    def __init__(self, app: ASGIApp, find_key: Callable[[str], Awaitable[ApiKey | None]]) -> None:
        """Ask `app`, as the keys that `find_key` finds by their ids: those still valid."""
        self._app = app
        self._find_key = find_key

    async def __call__(self, call: LineCall) -> LineAnswer:
        """Return the answer of the line's route; cancelling this is the client's going away."""
        scope = _scope(call)
        try:
            key = await self._key_of(call)
        except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
            logger.warning("the database does not answer for a batch's key: %r", error)
            return LineAnswer(503, RETRY_AFTER_SECONDS, b"null")
        if key is None:
            body = error_body(scope, KEY_ERROR, call.request_id)
            return LineAnswer(401, None, orjson.dumps(body))
        caller = Caller(
            request_id=call.request_id,
            client_request_id="",
            api_key=key,
            arrived_unix_seconds=time.time(),
            service_tier="batch",
        )
        caller.enter(scope)
        connection = _Connection(call.body)
        await self._app(scope, connection.receive, connection.send)
        return connection.answer()

    async def _key_of(self, call: LineCall) -> ApiKey | None:
        """Return as whom a line is asked: one that has its account by no key's limits any more."""
        if call.is_accounted:
            return ApiKey(call.api_key_id, call.tenant)
        return await self._find_key(call.api_key_id)


class _Connection:
    """The other side of one request."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 0
        self._headers = Headers()
        self._parts: list[bytes] = []

    async def receive(self) -> Message:
        """Give the body, then stay silent."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Keep the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = Headers(raw=message["headers"])
        else:
            self._parts.append(message.get("body", b""))

    def answer(self) -> LineAnswer:
        """Return what was sent; nothing was, if the request was cut off: then ask again."""
        if not self._status:
            return LineAnswer(503, RETRY_AFTER_SECONDS, b"null")
        waits = is_for_now(self._status, self._headers.raw)
        return LineAnswer(
            status=self._status,
            retry_after_seconds=float(self._headers["retry-after"]) if waits else None,
            body=b"".join(self._parts),
        )


def _scope(call: LineCall) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(call.body)).encode()),
        ],
        "client": None,
        "server": None,
    }
