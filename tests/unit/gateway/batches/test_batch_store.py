"""One replica at a time has a batch; each line's answer is stored and counted once."""

import asyncio

import pytest
import sqlalchemy as sa
from support.batch_files import LIMITS, Clock, numbered
from support.postgres import Postgres

from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.batches.answer import Answer, LineUsage
from pagoda_gateway.batches.batch_store import (
    CLOCK_STEP_SECONDS,
    LEASE_SECONDS,
    MAX_UNFINISHED,
    WINDOW_SECONDS,
    BatchStore,
    LeaseLostError,
)
from pagoda_gateway.batches.file_store import FileStore
from pagoda_gateway.batches.objects import batch_object
from pagoda_gateway.batches.schemas import BatchBody
from pagoda_gateway.batches.tables import ANSWERS, BATCHES
from pagoda_gateway.errors import (
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    StorageFullError,
)


async def create(files: FileStore, batches: BatchStore, tenant: str = "t") -> sa.RowMapping:
    file_id = await files.begin(tenant, "batch", "in")
    await files.append(tenant, file_id, 0, numbered(3))
    await files.finish(file_id, purpose="batch", filename="in", keep_seconds=None)
    body = BatchBody(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
    if isinstance(batches.clock, Clock):
        batches.clock.now += 0.001  # ids sort by time
    return await batches.create(tenant, "key-1", body)


async def begun(files: FileStore, batches: BatchStore, owner: str = "a") -> sa.RowMapping:
    await create(files, batches)
    batch = await batches.claim(owner)
    assert batch is not None
    assert await batches.begin(batch, owner, num_lines=3, model="m") == "in_progress"
    return batch


def answer(line: int, *, has_error: bool = False, data: bytes = b"{}\n") -> Answer:
    return Answer(line, has_error, data, LineUsage() if has_error else LineUsage(4, 3, 2, 1))


async def counts(batches: BatchStore, batch: sa.RowMapping) -> tuple[int, int, int]:
    row = await batches.get("t", batch["batch_id"])
    return row["num_lines"], row["num_completed"], row["num_failed"]


async def test_a_batch_has_one_owner_until_its_lease_ends(
    files: FileStore, batches: BatchStore, clock: Clock
) -> None:
    batch = await create(files, batches)
    assert await batches.claim("a") is not None
    assert await batches.claim("b") is None
    clock.now += LEASE_SECONDS - 1
    assert await batches.renew(batch["batch_id"], "a") == "validating"
    clock.now += LEASE_SECONDS - 1
    assert await batches.claim("b") is None
    clock.now += 1
    taken = await batches.claim("b")
    assert taken is not None
    assert taken["batch_id"] == batch["batch_id"]
    with pytest.raises(LeaseLostError):
        await batches.renew(batch["batch_id"], "a")


async def test_a_file_that_is_deleted_while_a_batch_is_made_of_it(
    files: FileStore, batches: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id = (await create(files, batches))["input_file_id"]
    await batches.cancel("t", (await batches.list_batches("t", after=None, limit=1))[0]["batch_id"])
    batch = await batches.claim("a")
    assert batch is not None
    await batches.finish(batch, "a", "cancelled")
    row = await files.get("t", file_id)
    await files.delete("t", file_id)

    async def get(*_: str) -> sa.RowMapping:
        return row  # as it was looked at before

    monkeypatch.setattr(files, "get", get)
    body = BatchBody(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
    with pytest.raises(InvalidRequestError, match="is being deleted"):
        await batches.create("t", "key-1", body)
    given = {"input_file_id": file_id, "num_lines": 3, "model": "m"}
    with pytest.raises(InvalidRequestError, match="is being deleted"):
        await batches.create_of_messages("t", "key-1", **given)
    assert await batches.claim("a") is None


async def test_who_takes_a_batch_over_knows_that_lines_may_have_run(
    files: FileStore, batches: BatchStore, clock: Clock
) -> None:
    """Though the one before, an older gateway, has not noted it."""
    file_id = await files.begin("t", "batch", "in")
    await files.append("t", file_id, 0, numbered(3))
    await files.finish(file_id, purpose="batch", filename="in", keep_seconds=None)
    await batches.create_of_messages("t", "k", input_file_id=file_id, num_lines=3, model="m")
    first = await batches.claim("older")
    assert first is not None
    assert first["in_progress_unix_seconds"] is None
    clock.now += LEASE_SECONDS
    second = await batches.claim("b")
    assert second is not None
    assert second["in_progress_unix_seconds"] == clock.now


async def test_a_lease_ends_at_once_for_a_clock_that_was_set_back(
    files: FileStore, batches: BatchStore, clock: Clock
) -> None:
    await create(files, batches)
    assert await batches.claim("dead") is not None
    clock.now -= 7200
    assert await batches.claim("b") is not None


async def test_a_lease_outlives_a_clock_that_was_set_back_a_little(
    files: FileStore, batches: BatchStore, clock: Clock
) -> None:
    await create(files, batches)
    assert await batches.claim("a") is not None
    clock.now -= CLOCK_STEP_SECONDS
    assert await batches.claim("b") is None


async def test_tenants_take_turns_though_a_clock_was_set_back(
    files: FileStore, batches: BatchStore, clock: Clock
) -> None:
    for tenant in ("dead", "dead", "alive"):
        await create(files, batches, tenant)
    assert [(await batches.claim("a") or {})["tenant"] for _ in range(2)] == ["dead", "alive"]
    clock.now -= 7200
    claimed = [await batches.claim("b") for _ in range(3)]
    assert [row["tenant"] for row in claimed if row] == ["dead", "alive", "dead"]


@pytest.mark.parametrize("seconds", [20.0, -20.0, 7200.0])
async def test_replicas_on_postgresql_go_by_its_clock_whatever_their_own_is(
    postgres: Postgres, clock: Clock, seconds: float
) -> None:
    other_clock = Clock()
    other_clock.now += seconds
    async with open_database(postgres.new_database()) as database:
        files = FileStore(database, LIMITS, clock)
        mine, other = (BatchStore(database, files, its) for its in (clock, other_clock))
        batch = await create(files, mine)
        assert await mine.claim("a") is not None
        assert await other.claim("b") is None
        await mine.renew(batch["batch_id"], "a")
        assert await other.claim("b") is None


async def test_replicas_that_claim_at_once_get_different_batches(
    files: FileStore, batches: BatchStore, clock: Clock, url: str
) -> None:
    made = {(await create(files, batches))["batch_id"] for _ in range(6)}
    async with open_database(url) as second:
        other = BatchStore(second, FileStore(second, LIMITS, clock), clock, clock)
        claimed = await asyncio.gather(
            *(store.claim(f"r{i}") for i, store in enumerate([batches, other] * 4))
        )
    assert sorted(row["batch_id"] for row in claimed if row) == sorted(made)


async def test_tenants_take_turns(files: FileStore, batches: BatchStore) -> None:
    for tenant in ("many", "many", "many", "one"):
        await create(files, batches, tenant)
    claimed = [await batches.claim("a") for _ in range(4)]
    assert [row["tenant"] for row in claimed if row] == ["many", "one", "many", "many"]


async def test_an_answer_counts_once(files: FileStore, batches: BatchStore) -> None:
    batch = await begun(files, batches)
    await batches.record(batch, "a", [answer(1), answer(2, has_error=True)], is_limited=True)
    for again in (answer(1, data=b"other\n"), answer(1, has_error=True), answer(2)):
        await batches.record(batch, "a", [again], is_limited=True)
    assert await counts(batches, batch) == (3, 1, 1)
    assert await batches.answered_lines(batch["batch_id"]) == {1, 2}
    await batches.record(batch, "a", [answer(3)], is_limited=True)
    assert batch_object(await batches.get("t", batch["batch_id"]))["usage"] == {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 6},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }


async def test_who_lost_the_lease_stores_nothing(
    files: FileStore, batches: BatchStore, clock: Clock
) -> None:
    batch = await begun(files, batches)
    clock.now += LEASE_SECONDS
    assert await batches.claim("b") is not None
    for late in (
        batches.record(batch, "a", [answer(1)], is_limited=True),
        batches.finish(batch, "a", "completed"),
        batches.fail(batch["batch_id"], "a", []),
        batches.begin(batch, "a", num_lines=9, model="m"),
    ):
        with pytest.raises(LeaseLostError):
            await late
    assert await counts(batches, batch) == (3, 0, 0)


async def test_the_end_shows_files_in_the_order_of_lines(
    files: FileStore, batches: BatchStore
) -> None:
    batch = await begun(files, batches)
    texts = {line: b"%d " % line + b"x" * (line % 7) * 60_000 + b"\n" for line in range(1, 60)}
    for line in reversed(texts):
        await batches.record(
            batch, "a", [answer(line, has_error=line == 5, data=texts[line])], is_limited=False
        )
    assert (
        await files.list_files("t", purpose="batch_output", after=None, limit=9, order="asc") == []
    )
    assert await batches.finish(batch, "a", "completed")
    row = await batches.get("t", batch["batch_id"])
    assert row["status"] == "completed"
    output = await files.get("t", row["output_file_id"])
    errors = await files.get("t", row["error_file_id"])
    pieces = [data async for data in files.content(output)]
    assert b"".join(pieces) == b"".join(texts[line] for line in sorted(texts) if line != 5)
    assert len(pieces) > 10
    assert b"".join([data async for data in files.content(errors)]) == texts[5]
    assert output["num_bytes"] == sum(map(len, pieces))


async def test_no_answers_no_file(files: FileStore, batches: BatchStore) -> None:
    batch = await begun(files, batches)
    await batches.record(batch, "a", [answer(1)], is_limited=True)
    await batches.finish(batch, "a", "completed")
    row = await batches.get("t", batch["batch_id"])
    assert row["output_file_id"]
    assert row["error_file_id"] is None


async def test_deleted_output_leaves_no_answers(
    database: Database, files: FileStore, batches: BatchStore
) -> None:
    batch = await begun(files, batches)
    for line in range(1, 200):
        await batches.record(batch, "a", [answer(line)], is_limited=True)
    await batches.finish(batch, "a", "completed")
    await files.delete("t", (await batches.get("t", batch["batch_id"]))["output_file_id"])
    assert await database.rows(sa.select(ANSWERS.c.line)) == []


async def test_cancel_wins_over_any_other_end(files: FileStore, batches: BatchStore) -> None:
    batch = await begun(files, batches)
    assert (await batches.cancel("t", batch["batch_id"]))["status"] == "cancelling"
    assert await batches.renew(batch["batch_id"], "a") == "cancelling"
    assert not await batches.finish(batch, "a", "completed")
    assert await batches.finish(batch, "a", "cancelled")
    assert (await batches.cancel("t", batch["batch_id"]))["status"] == "cancelled"


async def test_what_has_ended_cannot_be_cancelled(files: FileStore, batches: BatchStore) -> None:
    batch = await begun(files, batches)
    await batches.finish(batch, "a", "completed")
    with pytest.raises(InvalidRequestError, match="completed"):
        await batches.cancel("t", batch["batch_id"])
    with pytest.raises(NotFoundError):
        await batches.cancel("other", batch["batch_id"])


async def test_input_is_kept_while_a_batch_needs_it(
    files: FileStore, batches: BatchStore, clock: Clock
) -> None:
    batch = await begun(files, batches)
    with pytest.raises(InvalidRequestError, match=batch["batch_id"]):
        await files.delete("t", batch["input_file_id"])
    clock.now += LIMITS.keep_seconds + 1
    await files.sweep()
    assert await files.input_of(batch) is not None
    await batches.record(batch, "a", [], is_limited=False)
    await batches.finish(batch, "a", "expired")
    assert await files.sweep() == 1
    assert await files.input_of(batch) is None


async def test_answers_count_in_the_tenants_bytes(files: FileStore, batches: BatchStore) -> None:
    batch = await begun(files, batches)
    large = answer(1, data=bytes(LIMITS.tenant_bytes))
    with pytest.raises(StorageFullError):
        await batches.record(batch, "a", [large], is_limited=True)
    assert await counts(batches, batch) == (3, 0, 0)
    await batches.record(batch, "a", [answer(1, has_error=True)], is_limited=False)
    assert await counts(batches, batch) == (3, 0, 1)


async def test_a_tenant_has_only_so_many_at_a_time(
    database: Database, files: FileStore, batches: BatchStore
) -> None:
    row = dict(await create(files, batches))
    more = [{**row, "batch_id": f"batch_{i}"} for i in range(MAX_UNFINISHED - 1)]
    await database.call(lambda connection: connection.execute(sa.insert(BATCHES), more))
    with pytest.raises(OverloadedError, match=str(MAX_UNFINISHED)):
        await create(files, batches)
    await create(files, batches, "other")


async def test_old_batches_are_forgotten(
    files: FileStore, batches: BatchStore, clock: Clock
) -> None:
    ended, running = await begun(files, batches), await create(files, batches)
    clock.now += 2 * WINDOW_SECONDS  # all gateways were away, and it ends late
    await batches.finish(ended, "a", "expired")
    clock.now += LIMITS.keep_seconds - 1
    await batches.forget()
    assert await batches.get("t", ended["batch_id"])
    clock.now += 1
    await batches.forget()
    with pytest.raises(NotFoundError):
        await batches.get("t", ended["batch_id"])
    assert await batches.get("t", running["batch_id"])


async def test_only_input_files_can_be_run(files: FileStore, batches: BatchStore) -> None:
    batch = await begun(files, batches)
    await batches.record(batch, "a", [answer(1)], is_limited=True)
    await batches.finish(batch, "a", "completed")
    output = (await batches.get("t", batch["batch_id"]))["output_file_id"]
    for file_id in (output, "file-none"):
        body = BatchBody(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
        with pytest.raises(InvalidRequestError) as caught:
            await batches.create("t", "key-1", body)
        assert (caught.value.status, caught.value.param) == (400, "input_file_id")


async def test_an_id_with_a_nul_is_of_no_batch(batches: BatchStore) -> None:
    with pytest.raises(NotFoundError):
        await batches.get("t", "batch_\0")
    assert await batches.list_batches("t", after="\0", limit=1) == []
