"""What is kept of responses: for how long, how much, whose, and by which gateway."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from support.clocks import Now
from support.tenants import add_deleted_tenant

from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.errors import NotFoundError, StorageFullError, UnavailableError
from pagoda_gateway.large_bodies import INLINE_BYTES, LargeBodies
from pagoda_gateway.response_store.database_store import (
    ENTRY_BYTES,
    DatabaseResponseStore,
)
from pagoda_gateway.response_store.tables import RESPONSE_STORAGE, RESPONSES
from pagoda_gateway.responses.kept import Kept, ResponseStore

VALUE = {"n": 1}
SIZE = len(b'{"n":1}') + ENTRY_BYTES


@pytest.fixture
def now() -> Now:
    return Now()


def store_of(
    database: Database, now: Now, gateway_id: str = "gateway-1", max_bytes: int = 100 * SIZE
) -> ResponseStore:
    return DatabaseResponseStore(
        database, LargeBodies(), gateway_id=gateway_id, max_bytes=max_bytes,
        keep_seconds=10.0, run_seconds=60.0, clock=now,
    )  # fmt: skip


async def counted(database: Database) -> dict[str, int]:
    """Return the bytes of each tenant that has some, once they are those of its rows."""
    rows = await database.rows(sa.select(RESPONSE_STORAGE))
    said = {row["tenant"]: row["num_bytes"] for row in rows if row["num_bytes"]}
    total = sa.func.sum(RESPONSES.c.num_bytes)
    found = sa.select(RESPONSES.c.tenant, total.label("total")).group_by(RESPONSES.c.tenant)
    assert said == {row["tenant"]: row["total"] for row in await database.rows(found)}
    return said


async def test_what_is_put_again_is_there_once_and_nothing_beside_it_fails(
    database: Database, now: Now
) -> None:
    """A batch's line that runs again has its id again."""
    store = store_of(database, now)
    assert await store.put("a", "again", VALUE)
    put = [store.put("c", "first", VALUE), store.put("a", "again", {"n": 22})]
    assert all(await asyncio.gather(*put, store.put("b", "other", VALUE)))
    assert await store.get("a", "again") == Kept({"n": 22}, None)
    assert await store.get("b", "other") == Kept(VALUE, None)
    assert await counted(database) == {"a": SIZE + 1, "b": SIZE, "c": SIZE}


async def test_every_gateway_finds_it_for_its_tenant_until_it_is_deleted(
    database: Database, now: Now
) -> None:
    first, second = (store_of(database, now, f"gateway-{i}") for i in (1, 2))
    assert await first.put("a", "x", VALUE)
    assert await second.get("a", "x") == Kept(VALUE, None)
    assert await second.get("b", "x") is None
    assert not await second.delete("b", "x")
    assert await counted(database) == {"a": SIZE}
    assert await second.delete("a", "x")
    assert not await second.delete("a", "x")
    assert await first.get("a", "x") is None
    assert await counted(database) == {}


async def test_what_comes_meanwhile_is_written_at_once(
    database: Database, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, calls, call = store_of(database, now), [], database.call

    async def counted_call(work: Any) -> Any:
        calls.append(work)
        return await call(work)

    monkeypatch.setattr(database, "call", counted_call)
    names = [(tenant, f"{tenant}{i}") for i in range(10) for tenant in "bca"]
    assert all(await asyncio.gather(*(store.put(*name, VALUE) for name in names)))
    assert len(calls) == 1
    assert [await store.get(*name) for name in names] == [Kept(VALUE, None)] * 30
    assert await counted(database) == dict.fromkeys("abc", 10 * SIZE)


async def test_two_replicas_write_for_the_same_tenants(database: Database, now: Now) -> None:
    stores = [store_of(database, now, f"gateway-{i}", 20 * SIZE) for i in range(2)]
    puts = [
        stores[i % 2].put("abc"[i % 3], f"x{i}", VALUE, is_running=i % 5 == 0) for i in range(60)
    ]
    assert all(isinstance(kept, bool) for kept in await asyncio.gather(*puts))
    assert sum((await counted(database)).values()) <= 20 * SIZE


async def test_it_expires_and_is_swept(database: Database, now: Now) -> None:
    store = store_of(database, now)
    await store.put("a", "x", VALUE)
    await store.put("b", "y", VALUE)
    now.seconds += 9.9
    await store.put("b", "z", VALUE)
    assert await store.get("a", "x") is not None
    now.seconds += 0.1
    assert await store.get("a", "x") is None
    assert await counted(database) == {"a": SIZE, "b": 2 * SIZE}
    assert [await store.sweep(), await store.sweep()] == [2, 0]
    assert await counted(database) == {"b": SIZE}


async def test_a_deleted_tenant_keeps_only_what_runs(database: Database, now: Now) -> None:
    store = store_of(database, now)
    await store.put("a", "x", VALUE)
    await store.put("a", "y", VALUE, is_running=True)
    await store.put("b", "z", VALUE)
    await add_deleted_tenant(database, "a")
    assert [await store.sweep(), await store.sweep()] == [1, 0]
    assert await store.end("a", "y", dict) is not None
    assert await store.sweep() == 1
    assert await counted(database) == {"b": SIZE}


async def test_what_runs_is_kept_longer_and_ends_once(database: Database, now: Now) -> None:
    first, second = (store_of(database, now, f"gateway-{i}") for i in (1, 2))
    await first.put("a", "x", VALUE, is_running=True)
    await first.put("a", "y", VALUE)
    now.seconds += 60.0
    assert await second.get("a", "x") == Kept(VALUE, "gateway-1")
    assert await first.running() == {("a", "x")}
    assert await second.running() == set()
    await first.sweep()
    assert await second.end("b", "x", dict) is None
    longer = VALUE | {"more": 23}
    assert await second.end("a", "x", lambda value: value | {"more": 23}) == longer
    assert await first.end("a", "x", lambda _: {}) is None
    assert await first.end("a", "y", lambda _: {}) is None
    assert await first.running() == set()
    assert await first.get("a", "x") == Kept(longer, None)
    assert await counted(database) == {"a": SIZE + len(b',"more":23')}
    now.seconds += 10.0
    assert await first.get("a", "x") is None


async def test_what_does_not_run_is_changed_and_kept_as_if_it_were_new(
    database: Database, now: Now
) -> None:
    first, second = (store_of(database, now, f"gateway-{i}") for i in (1, 2))
    await first.put("a", "x", VALUE)
    await first.put("a", "y", VALUE, is_running=True)
    now.seconds += 9.0

    def counted_up(value: dict[str, Any]) -> dict[str, Any]:
        return {"n": value["n"] + 1}

    changes = [store.change("a", "x", counted_up) for store in (first, second) * 10]
    assert sorted(value["n"] for value in await asyncio.gather(*changes) if value) == [
        *range(2, 22)
    ]
    for tenant, name in (("a", "y"), ("b", "x"), ("a", "z")):
        assert await second.change(tenant, name, counted_up) is None
    now.seconds += 9.0
    assert await second.get("a", "x") == Kept({"n": 21}, None)
    assert await counted(database) == {"a": 2 * SIZE + 1}
    now.seconds += 1.0
    assert await second.change("a", "x", counted_up) is None


async def test_changes_of_two_processes_are_all_made(url: str, now: Now) -> None:
    """Each has a connection of its own: SQLite locks nothing for a read."""
    async with open_database(url) as first, open_database(url) as second:
        stores = [store_of(first, now), store_of(second, now)]
        await stores[0].put("a", "x", {"n": []})

        def add(number: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
            return lambda value: {"n": [*value["n"], number]}

        await asyncio.gather(*(stores[i % 2].change("a", "x", add(i)) for i in range(40)))
        kept = await stores[0].get("a", "x")
        assert kept is not None
        assert sorted(kept.value["n"]) == [*range(40)]
        await counted(first)


async def test_what_ends_and_what_changes_with_it_do_both_or_neither(
    database: Database, now: Now
) -> None:
    store = store_of(database, now)
    await store.put("a", "x", VALUE, is_running=True)
    await store.put("a", "y", VALUE)
    grown = VALUE | {"more": 23}

    def raising(_: dict[str, Any]) -> dict[str, Any]:
        raise StorageFullError("no")

    with pytest.raises(StorageFullError):
        await store.end("a", "x", lambda _: grown, ("y", raising))
    assert await store.running() == {("a", "x")}
    assert await store.end("a", "x", lambda _: grown, ("y", lambda _: grown)) == grown
    for name in "xy":
        assert await store.get("a", name) == Kept(grown, None)
    assert await counted(database) == {"a": 2 * SIZE + 2 * len(b',"more":23')}
    assert await store.end("a", "x", lambda _: VALUE, ("y", raising)) is None  # it has ended

    await store.put("a", "z", VALUE, is_running=True)
    for other in ("missing", "z"):  # it is not there, or runs
        await store.put("a", f"by-{other}", VALUE, is_running=True)
        assert await store.end("a", f"by-{other}", lambda _: grown, (other, raising)) == grown


async def test_a_change_that_raises_or_is_too_large_changes_nothing(
    database: Database, now: Now
) -> None:
    store = store_of(database, now, max_bytes=2 * SIZE)
    await store.put("a", "x", VALUE)

    def raising(_: dict[str, Any]) -> dict[str, Any]:
        raise NotFoundError("no")

    with pytest.raises(NotFoundError):
        await store.change("a", "x", raising)
    with pytest.raises(StorageFullError, match="RESPONSE_STORE_BYTES"):
        await store.change("a", "x", lambda _: {"n": "x" * 2 * SIZE})
    assert await store.get("a", "x") == Kept(VALUE, None)
    assert await counted(database) == {"a": SIZE}


async def test_a_change_takes_room_of_what_is_older(database: Database, now: Now) -> None:
    store = store_of(database, now, max_bytes=3 * SIZE)
    for name in "xyz":
        await store.put("a", name, VALUE)
        now.seconds += 1.0
    assert await store.change("a", "x", lambda _: {"n": 10}) == {"n": 10}
    assert [await store.get("a", name) is not None for name in "xyz"] == [True, False, True]
    assert await counted(database) == {"a": 2 * SIZE + 1}


async def test_who_holds_most_loses_the_oldest(database: Database, now: Now) -> None:
    store = store_of(database, now, max_bytes=4 * SIZE)
    await store.put("small", "x", VALUE)
    for name in "abcd":
        assert await store.put("large", name, VALUE)
    assert await store.get("small", "x") is not None
    kept = [await store.get("large", name) is not None for name in "abcd"]
    assert kept == [False, True, True, True]
    assert await counted(database) == {"small": SIZE, "large": 3 * SIZE}


async def test_what_runs_makes_no_room(database: Database, now: Now) -> None:
    store = store_of(database, now, max_bytes=2 * SIZE)
    assert await store.put("a", "x", VALUE, is_running=True)
    assert await store.put("b", "x1", VALUE)
    assert await store.put("a", "y", VALUE, is_running=True), "the other tenant's makes room"
    assert not await store.put("b", "z", VALUE)
    assert await store.get("b", "z") is None
    assert await store.running() == {("a", "x"), ("a", "y")}
    assert await counted(database) == {"a": 2 * SIZE}


async def test_what_is_too_large_is_not_kept_and_takes_no_room(
    database: Database, now: Now
) -> None:
    store = store_of(database, now, max_bytes=SIZE)
    await store.put("a", "x", VALUE)
    assert not await store.put("a", "y", {"n": 10})
    assert await store.get("a", "x") is not None


async def test_what_is_large_is_read_in_another_thread(
    database: Database, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(database, now, max_bytes=INLINE_BYTES * 2)
    read_in = []
    loads = orjson.loads

    def watched(text: bytes) -> Any:
        read_in.append((len(text), threading.current_thread() is threading.main_thread()))
        return loads(text)

    monkeypatch.setattr(orjson, "loads", watched)
    large = {"n": "x" * INLINE_BYTES}
    await store.put("a", "x", VALUE)
    await store.put("a", "y", large)
    assert await store.get("a", "x") == Kept(VALUE, None)
    assert await store.get("a", "y") == Kept(large, None)
    sizes = (len(b'{"n":1}'), INLINE_BYTES + len(b'{"n":""}'))
    assert read_in == [(sizes[0], True), (sizes[1], False)]


async def test_ids_that_no_response_has_are_not_found(database: Database, now: Now) -> None:
    store = store_of(database, now)
    for object_id in ("", "x\0", "x" * 1000, "é"):
        assert await store.get("a", object_id) is None
        assert not await store.delete("a", object_id)


async def test_a_database_that_does_not_answer_is_unavailable(
    database: Database, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(_: Any) -> None:
        raise TimeoutError

    store = store_of(database, now)
    monkeypatch.setattr(database, "call", late)
    changes = (store.end("a", "x", dict), store.change("a", "x", dict))
    works = (store.put("a", "x", VALUE), store.get("a", "x"), store.delete("a", "x"))
    for work in (*works, *changes, store.running(), store.sweep()):
        with pytest.raises(UnavailableError):
            await work
