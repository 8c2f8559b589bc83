"""Look-ups never wait for work; everything has a bound."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from support.postgres import Postgres
from support.servers import free_port

from pagoda_gateway.accounts import database as module
from pagoda_gateway.accounts.database import (
    Database,
    ReadOnlyError,
    database_address,
    open_database,
)
from pagoda_gateway.accounts.tenancy.tables import ORGANISATIONS
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy
from pagoda_gateway.batches.file_store import FileLimits, FileStore
from pagoda_runtime.errors import StartError

PID = sa.select(sa.func.pg_backend_pid().label("pid"))
FIND = sa.select(ORGANISATIONS.c.label).where(ORGANISATIONS.c.organisation == "default")


async def test_a_look_up_does_not_wait_for_work(database: Database) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.update(ORGANISATIONS).values(label="busy"))
        has_begun.set()
        may_end.wait(60)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.call(work))
        await asyncio.to_thread(has_begun.wait, 30)
        row = await database.look_up(FIND)
        may_end.set()
    assert row is not None
    assert row["label"] == ""  # as it was before the transaction that is not over


async def test_look_ups_beyond_the_limit_are_refused_at_once(database: Database) -> None:
    limit = 5
    database._free_look_ups = threading.BoundedSemaphore(limit)
    may_read = threading.Event()
    for _ in range(module.LOOK_UP_THREADS):
        database._look_ups.submit(may_read.wait, 30)
    waiting = [asyncio.create_task(database.look_up(FIND)) for _ in range(limit)]
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError, match="wait for the database already"):
        await database.look_up(FIND)
    waiting.pop().cancel()  # who gives up makes room
    await asyncio.sleep(0)
    more = asyncio.create_task(database.look_up(FIND))
    await asyncio.sleep(0)
    may_read.set()
    rows = await asyncio.gather(*waiting, more)
    assert len(rows) == limit
    for _ in range(limit):  # all of it is free again
        assert database._free_look_ups.acquire(blocking=False)


async def test_work_that_raises_is_undone(database: Database) -> None:
    def work(connection: sa.Connection) -> None:
        connection.execute(sa.update(ORGANISATIONS).values(label="half"))
        raise LookupError

    with pytest.raises(LookupError):
        await database.call(work)
    row = await Tenancy.of(database).organisations.records.get("default")
    assert row["label"] == ""


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgresql_is_reached_by_psycopg_within_deadlines(scheme: str) -> None:
    address = database_address(f"{scheme}://me:secret@host/db?connect_timeout=9")
    assert address.drivername == "postgresql+psycopg"
    assert address.query["connect_timeout"] == "9"
    assert "statement_timeout" in address.query["options"]


async def test_an_error_shows_no_values(database: Database) -> None:
    statement = sa.text("INSERT INTO nowhere VALUES (:value)")
    with pytest.raises(sa.exc.SQLAlchemyError) as raised:
        await database.call(lambda connection: connection.execute(statement, {"value": "secret"}))
    assert "nowhere" in str(raised.value)
    assert "secret" not in str(raised.value)


async def test_a_file_that_is_no_database_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_text("no database at all")
    with pytest.raises(StartError) as raised:
        async with open_database(f"sqlite:///{path}"):
            pass
    assert str(raised.value).startswith(
        f"cannot open the ledger sqlite:///{path} (file is not a database): "
    )
    assert "PAGODA_GATEWAY_LEDGER_URL" in str(raised.value)
    assert path.read_text() == "no database at all"


@pytest.mark.parametrize(("message", "num_tries"), [("database is locked", 3), ("disk I/O", 1)])
def test_a_file_that_others_make_at_that_moment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, message: str, num_tries: int
) -> None:
    """SQLite refuses some changes of a journal at once, however long it would wait for a write."""
    tries: list[str] = []

    class Connection:
        def execute(self, statement: str) -> None:
            tries.append(statement)
            if len(tries) < 3:
                raise sqlite3.OperationalError(message)

    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    refused = num_tries == 1
    with pytest.raises(sqlite3.OperationalError) if refused else contextlib.nullcontext():
        module._use_wal(Connection())
    assert len(tries) == num_tries


async def test_a_server_that_does_not_answer_is_said_without_its_password() -> None:
    with pytest.raises(StartError, match=r"Connection refused.*LEDGER_URL") as raised:
        async with open_database(f"postgresql://me:hidden@127.0.0.1:{free_port()}/db"):
            pass
    assert "hidden" not in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_folder_that_cannot_be_made_names_the_setting() -> None:
    with pytest.raises(StartError, match=r"folder /proc/nowhere .*PAGODA_GATEWAY_LEDGER_URL"):
        async with open_database("sqlite:////proc/nowhere/ledger.sqlite"):
            pass


@pytest_asyncio.fixture
async def shared(postgres: Postgres) -> AsyncIterator[Database]:
    async with open_database(postgres.new_database()) as opened:
        yield opened


async def test_no_statement_has_a_name_that_another_gateway_could_use(shared: Database) -> None:
    """Behind a pooler a name would lead to what another one has prepared."""

    def ask(connection: sa.Connection) -> object:
        for number in range(20):
            assert connection.scalar(sa.text("SELECT :n + 1"), {"n": number}) == number + 1
        return connection.scalar(sa.text("SELECT count(*) FROM pg_prepared_statements"))

    assert await shared.call(ask) == 0


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
async def test_a_database_that_cannot_keep_every_text_is_refused(
    postgres: Postgres, encoding: str
) -> None:
    with pytest.raises(StartError, match=f"keeps text as {encoding}.* ENCODING 'UTF8'"):
        async with open_database(postgres.new_database(encoding)):
            pass


async def test_texts_go_as_utf_8_whatever_the_environment_says(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    async with open_database(postgres.new_database()) as database:
        statement = sa.select(sa.literal("日本 🗻"))
        assert await database.scalar(statement) == "日本 🗻"


async def test_what_is_kept_goes_by_the_servers_clock(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of replicas whose clocks are wrong none deletes what others keep."""
    true, day = time.time, 86400.0
    monkeypatch.setattr(module.time, "time", lambda: true() + 400 * day)
    url = postgres.new_database()
    async with open_database(url) as database:
        assert abs(database.now() - true()) < 5.0
        assert await database.look_up(FIND) is not None
        assert abs(database.now() - true()) < 5.0
        files = FileStore(database, FileLimits(1000, 1000, 1000, 30 * day))
        file_id = await files.begin("t", "batch", "in")
        file = await files.finish(file_id, purpose="batch", filename="in", keep_seconds=None)
        assert abs(file["created_unix_seconds"] - true()) < 5.0
        assert await files.sweep() == 0


async def test_with_a_file_the_clock_is_this_hosts(database: Database) -> None:
    if not database.is_postgresql:
        assert abs(database.now() - time.time()) < 5.0


async def test_transactions_are_isolated_as_is_relied_upon(postgres: Postgres) -> None:
    """Whatever roles and databases say; a stricter one refuses what replicas do at one time."""
    url = postgres.new_database()
    postgres.set_isolation(url, "serializable")
    async with open_database(url) as database:
        shown = await database.scalar(sa.text("SHOW transaction_isolation"))  # type: ignore[arg-type]
        assert shown == "read committed"


async def test_a_database_that_only_reads_says_so(postgres: Postgres) -> None:
    url = postgres.new_database()
    async with open_database(url) as database:
        postgres.set_read_only(url, True)
        statement = sa.update(ORGANISATIONS).values(label="x")
        with pytest.raises(ReadOnlyError, match="read-only transaction"):
            await database.call(lambda connection: connection.execute(statement))
        assert await database.first(sa.select(ORGANISATIONS)) is not None


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Server processes that answer nothing, while PostgreSQL is well."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def pids_of(database: Database) -> list[int]:
    """Return the server processes of all of a database's connections."""
    everybody = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    return list(await database.call(lambda c: c.scalars(sa.text(everybody)).all()))


async def test_a_connection_that_hangs_is_cut_off_and_the_next_call_has_another(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = await shared.scalar(PID)
    with stopped(hanging):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.2)
        with pytest.raises(TimeoutError):
            await shared.scalar(PID)
        monkeypatch.setattr(module, "CALL_SECONDS", 60.0)
        async with asyncio.timeout(30):
            assert await shared.scalar(PID) != hanging


async def test_a_connection_that_hangs_within_a_call_is_cut_off(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def work(connection: sa.Connection) -> None:
        with stopped(connection.scalar(PID)):
            try:
                connection.execute(FIND)
            finally:
                ended.set()

    monkeypatch.setattr(module, "CALL_SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        await shared.call(work)
    assert await asyncio.to_thread(ended.wait, 30)


async def test_who_gives_up_leaves_no_thread_with_a_connection_that_hangs(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun = threading.Event()

    def work(connection: sa.Connection) -> None:
        with stopped(connection.scalar(PID)):
            has_begun.set()
            connection.execute(FIND)

    monkeypatch.setattr(module, "CALL_SECONDS", 0.5)
    left = asyncio.create_task(shared.call(work))
    await asyncio.to_thread(has_begun.wait, 30)
    left.cancel()
    monkeypatch.setattr(module, "CALL_SECONDS", 60.0)
    async with asyncio.timeout(30):
        await shared.scalar(PID)


async def test_look_ups_that_hang_are_cut_off_and_the_next_have_other_connections(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as made:
        for _ in range(module.LOOK_UP_THREADS):
            made.enter_context(shared._engine.connect())
    with stopped(*await pids_of(shared)):
        monkeypatch.setattr(module, "LOOK_UP_SECONDS", 0.2)
        hanging = [shared.look_up(FIND) for _ in range(module.LOOK_UP_THREADS)]
        errors = await asyncio.gather(*hanging, return_exceptions=True)
        monkeypatch.setattr(module, "LOOK_UP_SECONDS", 60.0)
        async with asyncio.timeout(30):
            assert await shared.look_up(FIND) is not None
    assert all(isinstance(error, module.NOT_ANSWERING) for error in errors)


async def test_work_whose_time_is_over_is_not_begun_on_another_connection(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    with stopped(await shared.scalar(PID)):
        monkeypatch.setattr(module, "CALL_SECONDS", 0.2)
        with pytest.raises(TimeoutError):
            await shared.call(lambda _: begun.append(True))
        monkeypatch.setattr(module, "CALL_SECONDS", 60.0)
        await shared.scalar(PID)
    assert not begun


async def test_a_turn_that_ends_late_leaves_the_next_ones_connection_alone(
    shared: Database,
) -> None:
    turns: list[module._Turn] = []

    def work(_: sa.Connection) -> None:
        turn = shared._turn
        assert turn is not None
        turns.append(turn)

    await shared.call(work)
    before = await pids_of(shared)
    turns[0].end()
    assert await pids_of(shared) == before


@pytest.mark.parametrize(
    ("known", "told", "asked", "answered", "offset"),
    [
        (None, 1000.0, 10.0, 12.0, 989.0),
        (989.5, 1000.0, 10.0, 12.0, 989.5),  # a slow answer is no reason to move
        (989.5, 1000.0, 10.0, 10.25, 989.75),  # a quick one is
        (990.5, 1000.0, 10.0, 12.0, 990.0),
        (989.0, 4600.0, 10.0, 12.0, 4588.0),  # it was set
    ],
)
def test_a_clock_is_as_right_as_its_quickest_answer(
    known: float | None, told: float, asked: float, answered: float, offset: float
) -> None:
    assert module.clock_offset(known, told, asked, answered) == offset


async def test_nobody_connects_whose_time_is_over(database: Database) -> None:
    class Dialect:
        def connect(self) -> None:
            raise AssertionError("it does")

    turn = module._Turn()
    turn.end()
    database._here.turn = turn
    with pytest.raises(TimeoutError):
        database._connect(Dialect(), None, (), {})
