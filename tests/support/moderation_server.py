"""A server of /v1/moderations in the test process: flags what it is told to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pagoda_gateway.http.server import http_server, listen
from pagoda_gateway.http.wire import send_json


@dataclass
class ModerationServer:
    """What it is told, and what it heard.

    Attributes:
        url: of its route.
        word: texts that have it are flagged as "evil".
        status: of its answers.
        gate: answers wait for it.
        bodies: questions.
        keys: Authorization headers.
        num_asking: waiting for an answer now; most_asking: at most so far.
    """

    url: str = ""
    word: str = "evil"
    status: int = 200
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    num_asking: int = 0
    most_asking: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = orjson.loads(await request.body())
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        self.num_asking += 1
        self.most_asking = max(self.most_asking, self.num_asking)
        try:
            await self.gate.wait()
        finally:
            self.num_asking -= 1
        results = [
            {
                "flagged": self.word in text,
                "categories": {"evil": self.word in text},
                "category_scores": {"evil": 0.9 if self.word in text else 0.1},
            }
            for text in body["input"]
        ]
        await send_json(send, self.status, {"id": "m", "model": "m", "results": results})


@contextlib.asynccontextmanager
async def moderation_server() -> AsyncIterator[ModerationServer]:
    """Run one on a free port."""
    server, listener = ModerationServer(), listen("127.0.0.1", 0)
    server.gate.set()
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/moderations"
    async with http_server(server, listener):
        try:
            yield server
        finally:
            server.gate.set()
