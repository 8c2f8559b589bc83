"""A run asks for every line without an answer, once; what refuses for now is asked again."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from support.batch_files import LIMITS, Clock, answers, batch_line, jsonl, numbered

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.batches import batch_run
from pagoda_gateway.batches.batch_run import BatchRun, RunOptions
from pagoda_gateway.batches.batch_store import LEASE_SECONDS, WINDOW_SECONDS, BatchStore
from pagoda_gateway.batches.file_store import FileStore
from pagoda_gateway.batches.line_request import MAX_TRIES, LineAnswer, LineCall
from pagoda_gateway.batches.places import Places
from pagoda_gateway.batches.schemas import BatchBody

OK = LineAnswer(200, None, b'{"ok":true}')
BUSY = LineAnswer(503, 0.0, b'{"error":{}}')


LeaveBehind = Callable[..., Awaitable[str]]


class Route:
    """Answers lines.

    Attributes:
        calls: everything that came.
        gate: lines wait until it is set.
        num_running, most_running: lines at once.
    """

    def __init__(self, reply: Callable[[LineCall], LineAnswer] = lambda call: OK) -> None:
        self._reply = reply
        self.calls: list[LineCall] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.came = asyncio.Condition()
        self.num_running = self.most_running = 0

    async def __call__(self, call: LineCall) -> LineAnswer:
        self.calls.append(call)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        async with self.came:
            self.came.notify_all()
        try:
            await self.gate.wait()
            return self._reply(call)
        finally:
            self.num_running -= 1

    async def has_come(self, count: int) -> None:
        async with asyncio.timeout(60), self.came:
            await self.came.wait_for(lambda: len(self.calls) >= count)


class Bench:
    """A store of batches and runs on them."""

    def __init__(self, files: FileStore, batches: BatchStore, clock: Clock) -> None:
        self.files, self.batches, self.clock = files, batches, clock
        self.batch_id = ""
        self.may_begin = True
        self.is_accounted = True
        self.places = Places(3, lambda most: most if self.may_begin else 0)

    async def upload(self, data: bytes) -> str:
        file_id = await self.files.begin("t", "batch", "in")
        await self.files.append("t", file_id, 0, data)
        await self.files.finish(file_id, purpose="batch", filename="in", keep_seconds=None)
        return file_id

    async def create_of_messages(self, num_lines: int) -> None:
        file_id = await self.upload(numbered(num_lines))
        row = await self.batches.create_of_messages(
            "t", "key-1", input_file_id=file_id, num_lines=num_lines, model="m"
        )
        self.batch_id = row["batch_id"]

    async def create(self, data: bytes) -> None:
        file_id = await self.upload(data)
        body = BatchBody(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
        self.batch_id = (await self.batches.create("t", "key-1", body))["batch_id"]

    async def until_accounted(self) -> bool:
        return self.is_accounted

    async def claimed(self, route: Route, owner: str = "a") -> BatchRun:
        batch = await self.batches.claim(owner)
        assert batch is not None
        options = RunOptions(
            owner=owner,
            max_lines=100,
            max_line_bytes=1000,
            check_model=lambda name: None,
            until_accounted=self.until_accounted,
        )
        return BatchRun(batch, self.files, self.batches, route, self.places, options)

    async def create_begun(self, num_lines: int) -> None:
        """Create a batch whose input was found good, by a replica that left before any line."""
        await self.create(numbered(num_lines))
        self.may_begin = False
        run = await self.claimed(Route())
        running = asyncio.create_task(run.run())
        while (await self.row())["status"] != "in_progress":
            pass
        run.leave()
        await running

    async def row(self) -> sa.RowMapping:
        return await self.batches.get("t", self.batch_id, of_messages=None)

    async def content(self, name: str) -> list[dict[str, Any]]:
        file = await self.files.get("t", (await self.row())[name])
        return answers(b"".join([data async for data in self.files.content(file)]))


@pytest.fixture
def bench(files: FileStore, batches: BatchStore, clock: Clock) -> Bench:
    return Bench(files, batches, clock)


async def test_every_line_is_asked_once_and_answered_in_order(bench: Bench) -> None:
    await bench.create(numbered(20))
    route = Route()
    await (await bench.claimed(route)).run()
    row = await bench.row()
    assert (row["status"], row["num_completed"], row["owner"]) == ("completed", 20, None)
    ulid = bench.batch_id.removeprefix("batch_")
    assert sorted(call.request_id for call in route.calls) == sorted(
        f"batch_req_{ulid}-{line}-0" for line in range(1, 21)
    )
    found = await bench.content("output_file_id")
    assert [line["custom_id"] for line in found] == [f"line-{i}" for i in range(20)]
    assert found[0] == {
        "id": f"batch_req_{ulid}-1",
        "custom_id": "line-0",
        "response": {
            "status_code": 200, "request_id": f"batch_req_{ulid}-1-0", "body": {"ok": True},
        },
        "error": None,
    }  # fmt: skip
    assert bench.places.num_taken == 0


async def test_a_run_that_is_killed_loses_no_line(bench: Bench) -> None:
    await bench.create(numbered(20))
    first = Route()
    run = asyncio.create_task((await bench.claimed(first)).run())
    await first.has_come(8)
    first.gate.clear()
    await first.has_come(len(first.calls) + 1)
    run.cancel()  # nothing is tidied up but by what a lease does
    with contextlib.suppress(asyncio.CancelledError):
        await run
    answered = await bench.batches.answered_lines(bench.batch_id)
    assert 0 < len(answered) < 20
    bench.clock.now += LEASE_SECONDS
    second = Route()
    await (await bench.claimed(second, "b")).run()
    asked = {int(call.request_id.split("-")[1]) for call in second.calls}
    assert asked == set(range(1, 21)) - answered
    assert len(await bench.content("output_file_id")) == 20
    assert bench.places.num_taken == 0


async def test_a_run_that_lost_its_lease_stores_nothing(bench: Bench) -> None:
    await bench.create(numbered(3))
    route = Route()
    route.gate.clear()
    run = asyncio.create_task((await bench.claimed(route)).run())
    await route.has_come(3)
    bench.clock.now += LEASE_SECONDS
    assert await bench.batches.claim("b") is not None
    route.gate.set()
    async with asyncio.timeout(60):
        await run
    row = await bench.row()
    assert (row["status"], row["num_completed"], row["owner"]) == ("in_progress", 0, "b")


async def test_refusals_for_now_are_not_answers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.0)
    await bench.create(numbered(2))

    def reply(call: LineCall) -> LineAnswer:
        return BUSY if int(call.request_id.rsplit("-", 1)[1]) < 3 else OK

    await (await bench.claimed(Route(reply))).run()
    found = await bench.content("output_file_id")
    assert [line["response"]["request_id"].rsplit("-", 1)[1] for line in found] == ["3", "3"]


async def test_a_line_is_not_asked_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.0)
    await bench.create(numbered(1))
    route = Route(lambda call: BUSY)
    await (await bench.claimed(route)).run()
    (error,) = await bench.content("error_file_id")
    assert error["response"]["status_code"] == 503
    assert len(route.calls) == MAX_TRIES


async def test_a_503_for_good_is_an_answer(bench: Bench) -> None:
    await bench.create(numbered(1))
    route = Route(lambda call: LineAnswer(503, None, b"{}"))
    await (await bench.claimed(route)).run()
    assert len(route.calls) == 1
    assert (await bench.row())["num_failed"] == 1


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_cancel_ends_a_batch_with_what_it_has(bench: Bench, is_waiting: bool) -> None:
    await bench.create(numbered(10))
    route = Route()
    run = asyncio.create_task((await bench.claimed(route)).run())
    await route.has_come(2)
    bench.may_begin = not is_waiting
    route.gate.clear()
    await bench.batches.cancel("t", bench.batch_id)
    route.gate.set()
    async with asyncio.timeout(60):
        await run
    row = await bench.row()
    assert row["status"] == "cancelled"
    done = [line["custom_id"] for line in await bench.content("output_file_id")]
    errors = await bench.content("error_file_id")
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert {line["response"] for line in errors} == {None}
    names = done + [line["custom_id"] for line in errors]
    assert sorted(names) == [f"line-{i}" for i in range(10)]
    assert (row["num_completed"], row["num_failed"]) == (len(done), len(errors))
    assert bench.places.num_taken == 0


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_cancelled_batch_is_ended_by_whoever_takes_it_next(
    bench: Bench, has_begun: bool
) -> None:
    if has_begun:
        await bench.create_begun(10)
    else:
        await bench.create(numbered(10))
    await bench.batches.cancel("t", bench.batch_id)
    await (await bench.claimed(Route(), "b")).run()
    row = await bench.row()
    assert (row["status"], row["num_lines"]) == ("cancelled", 10 * has_begun)
    assert row["num_failed"] == 10 * has_begun
    assert (row["error_file_id"] is not None) == has_begun


async def test_cancel_of_a_batch_that_nobody_runs(bench: Bench) -> None:
    await bench.create(numbered(10))
    await bench.batches.cancel("t", bench.batch_id)
    route = Route()
    await (await bench.claimed(route)).run()
    row = await bench.row()
    assert (row["status"], row["output_file_id"], route.calls) == ("cancelled", None, [])


async def test_what_is_left_at_the_end_of_the_window_has_expired(bench: Bench) -> None:
    await bench.create(numbered(10))
    first = Route()
    run = await bench.claimed(first)
    running = asyncio.create_task(run.run())
    await first.has_come(3)
    run.leave()
    await running
    done = (await bench.row())["num_completed"]
    bench.clock.now += WINDOW_SECONDS
    second = Route()
    await (await bench.claimed(second)).run()
    row = await bench.row()
    assert (row["status"], second.calls) == ("expired", [])
    assert (row["num_completed"], row["num_failed"]) == (done, 10 - done)
    errors = await bench.content("error_file_id")
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert {line["response"] for line in errors} == {None}


async def test_messages_are_run_at_once_and_go_on_elsewhere(bench: Bench) -> None:
    await bench.create_of_messages(10)
    row = await bench.row()
    assert (row["status"], row["num_lines"]) == ("in_progress", 10)
    bench.is_accounted = False  # nobody has to know: no line can have run
    first = Route()
    run = await bench.claimed(first)
    running = asyncio.create_task(run.run())
    await first.has_come(3)
    run.leave()
    await running
    assert (await bench.row())["in_progress_unix_seconds"] is not None
    assert {call.path for call in first.calls} == {"/v1/messages"}
    bench.is_accounted = True
    second = Route()
    await (await bench.claimed(second, "b")).run()
    row = await bench.row()
    assert (row["status"], row["num_completed"]) == ("completed", 10)
    assert len(first.calls) + len(second.calls) == 10


async def test_messages_that_were_cancelled_before_any_ran(bench: Bench) -> None:
    await bench.create_of_messages(10)
    bench.is_accounted = False
    await bench.batches.cancel("t", bench.batch_id, of_messages=True)
    route = Route()
    await (await bench.claimed(route)).run()
    row = await bench.row()
    assert (row["status"], route.calls) == ("cancelled", [])
    assert (row["num_failed"], row["num_cancelled"], row["num_expired"]) == (10, 10, 0)


async def test_messages_expire_with_the_window(bench: Bench) -> None:
    await bench.create_of_messages(10)
    first = Route()
    run = await bench.claimed(first)
    running = asyncio.create_task(run.run())
    await first.has_come(3)
    run.leave()
    await running
    done = (await bench.row())["num_completed"]
    bench.clock.now += WINDOW_SECONDS
    await (await bench.claimed(Route(), "b")).run()
    row = await bench.row()
    assert (row["status"], row["num_completed"]) == ("expired", done)
    assert row["num_failed"] == row["num_expired"] == 10 - done


@pytest_asyncio.fixture
async def left(bench: Bench, database: Database) -> LeaveBehind:
    """Have a replica die that has run line 3, at its second try, and stored no answer."""

    async def leave_behind(outcome: str | None, *, is_over: bool = True) -> str:
        await bench.create_begun(5)
        bench.may_begin = True
        ran = f"batch_req_{bench.batch_id.removeprefix('batch_')}-3-1"
        account = sa.insert(USAGE).values(request_id=ran, outcome=outcome)
        await database.call(lambda connection: connection.execute(account))
        bench.clock.now += WINDOW_SECONDS * is_over
        return ran

    return leave_behind


@pytest.mark.parametrize("outcome", ["finished", None, "failed"])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_line_that_is_accounted_for_has_its_answer_when_all_is_over(
    bench: Bench, left: LeaveBehind, outcome: str | None, is_cancelled: bool
) -> None:
    ran = await left(outcome, is_over=not is_cancelled)
    if is_cancelled:
        await bench.batches.cancel("t", bench.batch_id)
    route = Route()
    await (await bench.claimed(route, "b")).run()
    row = await bench.row()
    num_run = 0 if outcome == "failed" else 1
    assert row["status"] == ("cancelled" if is_cancelled else "expired")
    assert [(call.request_id, call.is_accounted) for call in route.calls] == [(ran, True)] * num_run
    assert (row["num_completed"], row["num_failed"]) == (num_run, 5 - num_run)
    assert bench.places.num_taken == 0


async def test_what_ran_is_run_first_and_by_no_keys_limits(bench: Bench, left: LeaveBehind) -> None:
    ran = await left("finished", is_over=False)
    route = Route()
    await (await bench.claimed(route, "b")).run()
    assert (await bench.row())["num_completed"] == 5
    assert route.calls[0].request_id == ran
    assert [call.is_accounted for call in route.calls] == [True, False, False, False, False]


async def test_what_ran_is_asked_under_its_own_name_however_often(
    bench: Bench, left: LeaveBehind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another name would be another account."""
    monkeypatch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.0)
    ran = await left("finished")
    answers = iter([BUSY, BUSY, BUSY])
    route = Route(lambda _: next(answers, OK))
    await (await bench.claimed(route, "b")).run()
    assert [call.request_id for call in route.calls] == [ran] * 4
    assert (await bench.row())["num_completed"] == 1


async def test_a_batch_does_not_end_before_the_ledger_has_what_ran(
    bench: Bench, left: LeaveBehind
) -> None:
    await left("finished")
    bench.is_accounted = False
    route = Route()
    await (await bench.claimed(route, "b")).run()
    row = await bench.row()
    assert (row["status"], row["num_failed"]) == ("in_progress", 0)
    assert await bench.batches.claim("c") is None  # not at once: others come first
    bench.is_accounted = True
    bench.clock.now += LEASE_SECONDS
    await (await bench.claimed(route, "c")).run()
    row = await bench.row()
    assert (row["status"], row["num_completed"], row["num_failed"]) == ("expired", 1, 4)


async def test_an_end_does_not_wait_for_ever_for_a_worker(
    bench: Bench, left: LeaveBehind, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left("finished")
    bench.may_begin = False
    monkeypatch.setattr(batch_run, "AGAIN_SECONDS", 0.2)
    await (await bench.claimed(Route(), "b")).run()
    row = await bench.row()
    assert (row["status"], row["num_failed"]) == ("expired", 5)
    errors = [line["error"] for line in await bench.content("error_file_id")]
    assert ["its answer was lost" in error["message"] for error in errors] == [
        *(False, False, True, False, False)
    ]
    codes = ["batch_expired", "batch_expired", "answer_lost", "batch_expired", "batch_expired"]
    assert [error["code"] for error in errors] == codes
    assert (row["num_expired"], row["num_cancelled"]) == (4, 0)
    assert bench.places.num_taken == 0


async def test_a_stop_ends_the_wait_for_a_place(bench: Bench, left: LeaveBehind) -> None:
    await left("finished")
    bench.may_begin = False
    run = await bench.claimed(Route(), "b")
    running = asyncio.create_task(run.run())
    while run._again is None:  # noqa: ASYNC110  (nothing tells of it)
        await asyncio.sleep(0)
    run.leave()
    async with asyncio.timeout(10):
        await running
    row = await bench.row()
    assert (row["status"], row["owner"], row["num_failed"]) == ("in_progress", None, 0)


async def test_a_batch_has_expired_whoever_writes_its_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create_begun(5)
    bench.clock.now += WINDOW_SECONDS

    async def fail(*_: object) -> bool:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(bench.batches, "finish", fail)
        with pytest.raises(ExceptionGroup):
            await (await bench.claimed(Route(), "b")).run()
    assert (await bench.row())["num_failed"] == 5
    bench.clock.now += 2 * LEASE_SECONDS
    await (await bench.claimed(Route(), "c")).run()
    row = await bench.row()
    assert (row["status"], row["completed_unix_seconds"]) == ("expired", None)
    assert row["expired_unix_seconds"] is not None


async def test_a_stop_finishes_what_runs_and_leaves_the_rest(bench: Bench) -> None:
    await bench.create(numbered(10))
    route = Route()
    route.gate.clear()
    run = await bench.claimed(route)
    running = asyncio.create_task(run.run())
    await route.has_come(3)
    run.leave()
    route.gate.set()
    await running
    assert route.most_running == 3
    row = await bench.row()
    assert (row["status"], row["num_completed"], row["owner"]) == ("in_progress", 3, None)
    await (await bench.claimed(Route())).run()
    assert (await bench.row())["num_completed"] == 10


async def test_no_line_begins_while_others_need_the_place(bench: Bench) -> None:
    await bench.create(numbered(4))
    bench.may_begin = False
    route = Route()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task((await bench.claimed(route)).run())
        while (await bench.row())["status"] != "in_progress":
            pass
        assert route.calls == []
        bench.may_begin = True
    assert (await bench.row())["num_completed"] == 4


async def test_a_bad_file_fails_and_runs_nothing(bench: Bench) -> None:
    await bench.create(jsonl(batch_line("a"), batch_line("a")))
    route = Route()
    await (await bench.claimed(route)).run()
    row = await bench.row()
    assert (row["status"], [error["line"] for error in row["errors"]]) == ("failed", [2])
    assert route.calls == []


@pytest.mark.parametrize("num_turns", range(8))
async def test_a_line_that_fails_gives_every_place_back(bench: Bench, num_turns: int) -> None:
    class Broken(Route):
        async def __call__(self, call: LineCall) -> LineAnswer:
            for _ in range(num_turns):  # so that the next line is at each point of its start
                await asyncio.sleep(0)
            raise RuntimeError("broken")

    bench.places = Places(2, lambda most: most)
    await bench.create(numbered(20))
    with pytest.raises(ExceptionGroup):
        await (await bench.claimed(Broken())).run()
    assert bench.places.num_taken == 0
    row = await bench.row()
    assert (row["status"], row["num_completed"], row["owner"]) == ("in_progress", 0, "a")
    for _ in range(bench.places.num_places):
        async with asyncio.timeout(60):
            await bench.places.take()


async def test_a_full_store_tells_each_line(bench: Bench) -> None:
    await bench.create(numbered(6))
    large = b'{"text":"%s"}' % (b"x" * (LIMITS.tenant_bytes // 2))
    route = Route(lambda call: LineAnswer(200, None, large))
    await (await bench.claimed(route)).run()
    row = await bench.row()
    assert row["status"] == "completed"
    assert (row["num_completed"], row["num_failed"]) == (1, 5)
    errors = await bench.content("error_file_id")
    assert {line["error"]["code"] for line in errors} == {"storage_limit_exceeded"}
    assert len(route.calls) < 6
