"""Bodies: limits of size, time and all of them together; whatever ends, nothing stays held."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from pagoda_gateway.body_budget import BodyBudget
from pagoda_gateway.errors import BodyTooLargeError, SlowBodyError, UnavailableError
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.large_bodies import LargeBodies


def request(*messages: Any, headers: dict[str, str] | None = None) -> Request:
    """A request whose body comes in these pieces; after the last one nothing more comes."""
    waiting = list(messages)

    async def receive() -> Any:
        if not waiting:
            await asyncio.get_running_loop().create_future()
        return waiting.pop(0)

    raw = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
    return Request({"type": "http", "headers": raw}, receive)


def piece(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def reader(
    bodies: BodyBudget | None = None, *, max_bytes: int = 100, timeout_seconds: float = 5.0
) -> BodyReader:
    return BodyReader(
        bodies or BodyBudget(150), LargeBodies(), max_bytes=max_bytes,
        timeout_seconds=timeout_seconds,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def read(reader: BodyReader, sent: Request) -> AsyncIterator[bytes]:
    with reader.held() as held:
        yield await reader.read(sent, held)


async def test_bytes_are_held_until_the_work_is_done() -> None:
    bodies = BodyBudget(150)
    parts = request(piece(b"ab", more=True), piece(b"c"))
    async with read(reader(bodies), parts) as raw:
        assert raw == b"abc"
        assert bodies.num_held_bytes == 3
    assert bodies.num_held_bytes == 0


async def test_all_bodies_share_one_budget() -> None:
    bodies = BodyBudget(150)
    async with read(reader(bodies), request(piece(b"x" * 100))):
        with pytest.raises(UnavailableError, match="150") as caught:
            async with read(reader(bodies), request(piece(b"x" * 51))):
                pass
        assert caught.value.headers() == {"retry-after": "1"}
        assert bodies.num_held_bytes == 100
        async with read(reader(bodies), request(piece(b"x" * 50))):
            pass


async def test_trickle_is_cut() -> None:
    bodies = BodyBudget(150)
    with pytest.raises(SlowBodyError, match="1 bytes"):
        async with read(reader(bodies, timeout_seconds=0.01), request(piece(b"x", more=True))):
            pass
    assert bodies.num_held_bytes == 0


async def test_what_came_while_the_process_stood_still_is_read() -> None:
    """By then its time is over."""
    came = asyncio.Event()

    async def receive() -> Any:
        await came.wait()
        return piece(b"late")

    asyncio.get_running_loop().call_later(0.02, came.set)
    late = Request({"type": "http", "headers": []}, receive)
    async with read(reader(timeout_seconds=0.01), late) as raw:
        assert raw == b"late"


async def test_cancelled_reader_frees_what_it_held() -> None:
    bodies = BodyBudget(150)

    async def begin() -> None:
        async with read(reader(bodies), request(piece(b"xyz", more=True))):
            pass

    task = asyncio.create_task(begin())
    while not bodies.num_held_bytes:  # noqa: ASYNC110  (nothing tells of it)
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bodies.num_held_bytes == 0


async def test_client_that_leaves_is_told_apart() -> None:
    bodies = BodyBudget(150)
    gone = {"type": "http.disconnect"}
    with pytest.raises(ClientDisconnect):
        async with read(reader(bodies), request(piece(b"x", more=True), gone)):
            pass
    assert bodies.num_held_bytes == 0


async def test_too_large_a_body_is_taken_in_before_it_is_refused() -> None:
    pieces = [piece(b"x" * 90, more=True), piece(b"x" * 90, more=True), piece(b"x" * 90)]
    for headers in ({}, {"content-length": "270"}):
        sent = request(*pieces, headers=headers)
        with pytest.raises(BodyTooLargeError, match="100"):
            async with read(reader(), sent):
                pass
        with pytest.raises(TimeoutError):  # nothing is left of it
            await asyncio.wait_for(sent.receive(), 0.001)


async def test_client_that_asks_first_sends_nothing() -> None:
    sent = request(headers={"content-length": "270", "expect": "100-continue"})
    with pytest.raises(BodyTooLargeError):
        async with read(reader(), sent):
            pass
