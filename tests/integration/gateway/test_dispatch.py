"""What runs beside the sync of a request's account, and who waits for it."""

import asyncio
import errno
from collections.abc import Iterable, Iterator

import pytest
from support.running_gateway import CHAT, Running, Start, cancel_requests

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageRecord
from pagoda_gateway.accounts.usage.segments import SegmentWriter
from pagoda_gateway.accounts.usage.usage_log import UsageLog
from pagoda_gateway.http.generation import handler, response
from pagoda_gateway.sequences.generation import Generation

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECONDS = 60.0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """A disk that syncs nothing until the event is set."""
    is_well, write = asyncio.Event(), SegmentWriter.write

    async def slow_write(self: SegmentWriter, records: Iterable[bytes]) -> tuple[int, int]:
        await is_well.wait()
        return await write(self, records)

    monkeypatch.setattr(SegmentWriter, "write", slow_write)
    yield is_well
    is_well.set()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[UsageClose]:
    """The close records, as they are about to be written."""
    records: list[UsageClose] = []
    close = UsageLog.close

    async def noting(self: UsageLog, record: UsageClose) -> None:
        records.append(record)
        await close(self, record)

    monkeypatch.setattr(UsageLog, "close", noting)
    return records


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


async def answered(running: Running) -> Generation:
    """Return the only generation that is not on disk, once its worker has answered all of it."""

    def found() -> list[Generation]:
        all_of_them = running.gateway.admission._generations
        return [g for g in all_of_them if g.is_over and not g.is_opened]

    async with asyncio.timeout(SECONDS):
        while not found():  # noqa: ASYNC110
            await asyncio.sleep(0)
    (generation,) = found()
    return generation


@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_gets_a_token_that_no_account_on_disk_has(
    start: Start, disk: asyncio.Event, stream: bool
) -> None:
    """Though its worker has answered all of it meanwhile."""
    arrived = bytearray()

    async def ask(running: Running) -> int:
        body = {**CHAT, "stream": stream}
        async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for part in answer.aiter_raw():
                arrived.extend(part)
        return answer.status_code

    async with start() as running:
        asking = asyncio.create_task(ask(running))
        generation = await answered(running)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not arrived
        assert len(running.worker.requests) == 1
        disk.set()

        assert await asking == 200
        assert arrived
        assert generation.ttft_seconds is not None
        opened_after = generation._opened_seconds - generation.identity.arrived_seconds
        assert generation.ttft_seconds == opened_after  # when it could have it


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_before_the_account_is_on_disk_is_billed_nothing(
    start: Start, disk: asyncio.Event, closed: list[UsageClose], stream: bool
) -> None:
    """Though all of the answer was there."""
    async with start() as running:
        asking = asyncio.create_task(running.chat(stream=stream))
        generation = await answered(running)
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(SECONDS):
            while not closed:  # noqa: ASYNC110
                await asyncio.sleep(0)
        disk.set()
        await idle(running)

        assert generation.is_disconnected
        (record,) = closed
        assert (record.outcome, record.num_output_tokens) == ("disconnected", 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_answered_already_is_refused_by_a_disk_that_fails(
    start: Start, disk: asyncio.Event, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async def refuse(*_: object) -> tuple[int, int]:
        await disk.wait()
        raise OSError(errno.ENOSPC, "No space left on device")

    async with start() as running:
        monkeypatch.setattr(SegmentWriter, "write", refuse)
        asking = asyncio.create_task(running.chat(stream=stream))
        await answered(running)
        disk.set()
        answer = await asking

        assert answer.status_code == 503
        assert "No space left" in answer.json()["error"]["message"]
        await idle(running)


async def test_a_disk_that_refuses_frees_the_question_to_the_router(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> tuple[int, int]:
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

    async def noting(self: SegmentWriter, records: Iterable[bytes]) -> tuple[int, int]:
        written = list(records)
        stored.extend(map(UsageRecord.FromString, written))
        return await write(self, written)

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


@pytest.mark.parametrize("stream", [False, True])
async def test_an_account_that_is_put_off_is_written_by_who_is_cancelled(
    start: Start, closed: list[UsageClose], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The client has all of its answer, and may ask again, before anything is settled."""
    monkeypatch.setattr(response, "SETTLE_SECONDS", SECONDS)
    async with start() as running:
        for _ in range(2):
            assert (await running.chat(stream=stream)).status_code == 200
        assert not closed
        assert running.gateway.admission.num_requests == 2

        cancel_requests()
        await idle(running)
        assert [record.outcome for record in closed] == ["finished"] * 2
        assert all(record.num_output_tokens for record in closed)
