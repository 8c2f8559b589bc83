"""Requests under more load than can be served, on a clock that only the test moves."""

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest_asyncio
from nats.aio.msg import Msg

from pagoda_runtime.messaging import request_server
from pagoda_runtime.messaging.codec import REMAINING_HEADER
from pagoda_runtime.messaging.request_server import RequestServer
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.telemetry.metrics import BUS_SHED


class Desk:
    """A server whose every handler ends when the test lets it, and what became of each request."""

    def __init__(self, tasks: BackgroundTasks, max_concurrent: int, max_waiting: int) -> None:
        self.now = 1000.0
        self.done = asyncio.Semaphore(0)
        self.started: list[str] = []
        self.in_time: list[str] = []
        self.too_late: list[str] = []
        self.refused: dict[str, str] = {}
        self.read_at: dict[str, float] = {}
        self.server = RequestServer(
            self._answer,
            self._refuse,
            tasks,
            max_concurrent=max_concurrent,
            max_waiting=max_waiting,
            clock=lambda: self.now,
        )

    async def ask(self, name: str, seconds: float | None = 5.0, payload: bytes = b"") -> None:
        headers = {} if seconds is None else {REMAINING_HEADER: str(seconds)}
        message = Msg(Mock(), "pagoda.v1.route.m", name, payload, headers)
        self.server.on_message(message)
        await self.settle()

    async def finish(self, number: int = 1) -> None:
        for _ in range(number):
            self.done.release()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _answer(self, message: Msg, moment: float) -> None:
        self.started.append(message.reply)
        self.read_at[message.reply] = moment
        await self.done.acquire()
        assert message.headers is not None
        deadline = moment + float(message.headers.get(REMAINING_HEADER, "inf"))
        (self.in_time if self.now <= deadline else self.too_late).append(message.reply)

    async def _refuse(self, message: Msg, reason: str) -> None:
        self.refused[message.reply] = reason


@pytest_asyncio.fixture
async def tasks() -> AsyncIterator[BackgroundTasks]:
    owned = BackgroundTasks()
    yield owned
    await owned.close()


def shed(reason: str) -> float:
    return BUS_SHED.labels("route", reason)._value.get()


async def test_expired_request_is_shed_and_counted(tasks: BackgroundTasks) -> None:
    desk, before = Desk(tasks, 1, 10), shed("expired")
    await desk.ask("first")
    await desk.ask("gives up", seconds=1.0)
    await desk.ask("patient", seconds=None)
    desk.now += 2.0
    await desk.finish(2)
    assert desk.started == ["first", "patient"]
    assert "it waited 2.000 s here and had 1.000 s left" in desk.refused["gives up"]
    assert shed("expired") - before == 1


async def test_what_waited_is_served_with_when_it_was_read(tasks: BackgroundTasks) -> None:
    desk = Desk(tasks, 1, 10)
    await desk.ask("first")
    await desk.ask("waits")
    desk.now += 2.0
    await desk.finish(2)
    assert desk.read_at == {"first": 1000.0, "waits": 1000.0}


async def test_newest_is_served_first(tasks: BackgroundTasks) -> None:
    desk = Desk(tasks, 1, 10)
    for name in "abc":
        await desk.ask(name)
    await desk.finish(3)
    assert desk.in_time == ["a", "c", "b"]


async def test_oldest_is_shed_when_too_many_wait(tasks: BackgroundTasks) -> None:
    desk, before = Desk(tasks, 1, 2), shed("full")
    for name in "abcd":
        await desk.ask(name)
    assert desk.refused == {"b": "not served: 2 newer requests are waiting"}
    assert shed("full") - before == 1


async def test_bytes_that_wait_are_bounded(tasks: BackgroundTasks) -> None:
    desk = Desk(tasks, 1, 10)
    half = bytes(request_server.MAX_WAITING_BYTES // 2)
    for name in "abcd":
        await desk.ask(name, payload=half)
    assert list(desk.refused) == ["b"]


async def test_closing_drops_what_waits(tasks: BackgroundTasks) -> None:
    desk = Desk(tasks, 1, 10)
    await desk.ask("a")
    await desk.ask("b")
    await tasks.close()
    assert desk.started == ["a"]


async def test_overload_leaves_served_work_useful_and_is_over_at_once(
    tasks: BackgroundTasks,
) -> None:
    """Twice the load that one can serve, for four deadlines: then half of that load.

    In order of arrival all served during the overload but the first few are too late, and after it
    a backlog of some thousand requests without callers comes before the first one with a caller.
    """
    desk = Desk(tasks, max_concurrent=1, max_waiting=10_000)
    tick, patience = 0.01, 0.5
    num_ticks = int(4 * patience / tick)
    for number in range(num_ticks):
        await desk.ask(f"overload-{number}a", patience)
        await desk.ask(f"overload-{number}b", patience)
        desk.now += tick
        await desk.finish()
    assert len(desk.in_time) >= 0.99 * num_ticks
    assert desk.too_late == []
    desk.now += patience
    await desk.ask("afterwards", patience)
    await desk.finish(2)  # one was being served
    assert "afterwards" in desk.in_time
