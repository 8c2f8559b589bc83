"""What must have ended before a worker hears of a request, and what runs beside it until then."""

import asyncio
import errno
import threading
from collections.abc import Iterable, Iterator

import pytest
from support.running_gateway import Running, Start

from pagoda.rpc.v1.usage_pb2 import UsageRecord
from pagoda_gateway.accounts.usage.segments import SegmentWriter
from pagoda_gateway.http.generation import handler

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECONDS = 60.0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that syncs nothing until the event is set."""
    is_well, write = threading.Event(), SegmentWriter.write

    def slow_write(*arguments: object) -> tuple[int, int]:
        is_well.wait(SECONDS)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentWriter, "write", slow_write)
    yield is_well
    is_well.set()


async def asked(running: Running, num_requests: int) -> None:
    """Return once the router has heard of so many requests."""
    async with asyncio.timeout(SECONDS):
        while len(running.router.requests) < num_requests:  # noqa: ASYNC110
            await asyncio.sleep(0)


def num_awaited(running: Running) -> int:
    """Return how many answers the gateway waits for on the bus."""
    return len(running.gateway.placer._bus._connection.replies)


async def idle(running: Running) -> None:
    async with asyncio.timeout(SECONDS):
        assert await running.gateway.admission.drain(SECONDS)


@pytest.mark.parametrize("stream", [False, True])
async def test_no_worker_hears_of_what_is_not_on_disk(
    running: Running, disk: threading.Event, stream: bool
) -> None:
    before, num_routed = len(running.worker.requests), len(running.router.requests)
    asking = asyncio.create_task(running.chat(stream=stream))
    await asked(running, num_routed + 1)  # beside the sync
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(running.worker.requests) == before
    disk.set()

    assert (await asking).status_code == 200
    assert len(running.worker.requests) == before + 1
    assert len(running.router.requests) == num_routed + 1


async def test_a_disk_that_refuses_frees_the_question_to_the_router(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> tuple[int, int]:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with start() as running:
        before = len(running.worker.requests)
        running.router.is_silent = True
        monkeypatch.setattr(SegmentWriter, "write", refuse)
        answer = await running.chat()

        assert answer.status_code == 503
        await idle(running)
        assert num_awaited(running) == 0
        assert len(running.worker.requests) == before


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_question_to_the_router(
    start: Start, stream: bool
) -> None:
    async with start() as running:
        running.router.is_silent = True
        num_routed = len(running.router.requests)
        asking = asyncio.create_task(running.chat(stream=stream))
        await asked(running, num_routed + 1)
        assert num_awaited(running) == 1
        asking.cancel()
        await asyncio.wait([asking])

        await idle(running)
        assert num_awaited(running) == 0
        assert len(running.worker.requests) == 0


async def test_the_account_of_what_no_response_runs_is_closed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[UsageRecord] = []
    write = SegmentWriter.write

    def noting(self: SegmentWriter, records: Iterable[bytes]) -> tuple[int, int]:
        written = list(records)
        stored.extend(map(UsageRecord.FromString, written))
        return write(self, written)

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(SegmentWriter, "write", noting)
    monkeypatch.setattr(handler, "PrefixWatch", fail)  # what is made once the account is open
    async with start() as running:
        answer = await running.chat()
        assert answer.status_code == 500
        async with asyncio.timeout(SECONDS):
            while len(stored) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)

        opened, closed = stored
        assert opened.open.request_id == closed.close.request_id != ""
        assert closed.close.outcome == "failed"
        await idle(running)
        assert num_awaited(running) == 0
        assert len(running.worker.requests) == 0
