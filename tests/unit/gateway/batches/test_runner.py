"""Who waits for his limits holds up nobody else's batches."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa
from support.batch_files import Clock, numbered

from pagoda_gateway.batches import runner
from pagoda_gateway.batches.batch_run import RunOptions
from pagoda_gateway.batches.batch_store import BatchStore
from pagoda_gateway.batches.file_store import FileStore
from pagoda_gateway.batches.line_request import LineAnswer, LineCall
from pagoda_gateway.batches.places import Places
from pagoda_gateway.batches.runner import MAX_RUNS, running_batches
from pagoda_gateway.batches.schemas import BatchBody

OK = LineAnswer(200, None, b'{"ok":true}')
LIMITED = LineAnswer(429, 3600.0, b'{"error":{}}')


class Stack:
    """A replica's batches, of tenants that have limits ("limited...") and of others."""

    def __init__(self, files: FileStore, batches: BatchStore) -> None:
        self.files, self.batches = files, batches
        self.places = Places(2, lambda most: most)
        self.asked: list[str] = []

    async def create(self, tenant: str, num_lines: int) -> str:
        file_id = await self.files.begin(tenant, "batch", "in")
        await self.files.append(tenant, file_id, 0, numbered(num_lines))
        await self.files.finish(file_id, purpose="batch", filename="in", keep_seconds=None)
        body = BatchBody(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
        return str((await self.batches.create(tenant, "key-1", body))["batch_id"])

    async def ask(self, call: LineCall) -> LineAnswer:
        self.asked.append(call.tenant)
        return LIMITED if call.tenant.startswith("limited") else OK

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def accounted() -> bool:
            return True

        options = RunOptions("a", 100, 1000, lambda name: None, accounted)
        async with running_batches(self.files, self.batches, self.ask, self.places, options):
            yield

    async def until(self, tenant: str, batch_id: str, status: str) -> sa.RowMapping:
        async with asyncio.timeout(60):
            while (row := await self.batches.get(tenant, batch_id))["status"] != status:
                pass
        return row


@pytest.fixture
def stack(files: FileStore, batches: BatchStore, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    return Stack(files, batches)


async def test_lines_that_a_limit_refused_leave_their_places_to_others(stack: Stack) -> None:
    held = await stack.create("limited", 10)
    async with stack.running():
        await stack.until("limited", held, "in_progress")
        async with asyncio.timeout(60):
            while len(stack.asked) < stack.places.num_places:  # noqa: ASYNC110
                await asyncio.sleep(0)
        free = await stack.create("free", 10)
        assert (await stack.until("free", free, "completed"))["num_completed"] == 10
        assert stack.asked.count("limited") == stack.places.num_places  # no more lines are open
        await stack.batches.cancel("limited", held)
        assert (await stack.until("limited", held, "cancelled"))["num_failed"] == 10
    assert stack.places.num_taken == 0


async def test_batches_that_wait_for_limits_leave_room_for_others(stack: Stack) -> None:
    """Of one tenant as many as may run, of several more than that."""
    for name in ["limited-1"] * (MAX_RUNS + 2) + ["limited-2", "limited-3"]:
        await stack.create(name, 3)
    async with stack.running():
        async with asyncio.timeout(60):
            while set(stack.asked) < {"limited-1", "limited-2", "limited-3"}:  # noqa: ASYNC110
                await asyncio.sleep(0)
        free = await stack.create("free", 3)
        assert (await stack.until("free", free, "completed"))["num_completed"] == 3
        mine = await stack.batches.list_batches("limited-1", after=None, limit=100)
    assert [row["status"] for row in mine].count("in_progress") == MAX_RUNS


async def test_a_line_is_asked_again_in_a_place_of_its_own(stack: Stack, clock: Clock) -> None:
    """In turn with others, at most as many at once as there are places."""
    num_at_once = most_at_once = 0
    refused: set[str] = set()

    async def ask(call: LineCall) -> LineAnswer:
        nonlocal num_at_once, most_at_once
        num_at_once += 1
        most_at_once = max(most_at_once, num_at_once)
        await asyncio.sleep(0)
        num_at_once -= 1
        line = call.request_id.rsplit("-", 1)[0]
        if line in refused:
            return OK
        refused.add(line)
        return LineAnswer(429, 0.0, b'{"error":{}}')

    stack.ask = ask  # type: ignore[method-assign]
    batches = [await stack.create(name, 5) for name in ("t", "u")]
    async with stack.running():
        for tenant, batch_id in zip("tu", batches, strict=True):
            row = await stack.until(tenant, batch_id, "completed")
            assert row["num_completed"] == 5
    assert most_at_once <= stack.places.num_places == 2
    assert stack.places.num_taken == 0
