"""The database of the gateways: SQLite embedded, or PostgreSQL shared by replicas.

One thread does all its work, in transactions; what requests wait for (whose key is this?) has
threads and connections of its own, so that no work delays it. A connection to PostgreSQL that
answers nothing is cut off when a call's time is up. What is kept for a time goes by the clock of
the database's host, whatever the replicas' clocks say. Knows no table.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url

from pagoda_gateway.accounts.migrate import migrate
from pagoda_runtime.errors import StartError
from pagoda_runtime.needed import needed_folder

if TYPE_CHECKING:
    import psycopg  # else 10 MB of every gateway whose database is a file

VARIABLE = "PAGODA_GATEWAY_LEDGER_URL"
CALL_SECONDS = 20.0
LOOK_UP_SECONDS = 5.0  # one row by its key; nobody waits longer for it
LOOK_UP_THREADS = 2
MAX_LOOK_UPS = 256  # running and waiting; more are refused at once
CHECKOUT_SECONDS = 5.0
SQLITE_WAIT_SECONDS = 10.0  # for another process that writes
SQLITE_PAUSE_SECONDS = 0.01
CLOSE_SECONDS = 20.0
NOT_ANSWERING = (OSError, sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)
"""What means that the database does not answer; Python's own TimeoutError is an OSError."""

_REFUSES_WRITES = ("25006", "42501")  # SQLSTATE: a transaction that only reads; no privilege


class ReadOnlyError(OSError):
    """The database answers, and takes no writes: as a standby does, or from a role that may not."""


_FULL = ("disk is full", "No space left on device")  # SQLite's words, and PostgreSQL's


def refusal(error: Exception) -> str:
    """Return what an error says of the database, such as "does not answer"."""
    if not isinstance(error, NOT_ANSWERING):
        return "refuses what it is asked: see the log"
    if isinstance(error, ReadOnlyError):
        return f"takes no writes: {error}"
    if any(text in str(error) for text in _FULL):
        return "takes nothing: its disk is full"
    return "does not answer"


def clock_offset(known: float | None, told: float, asked: float, answered: float) -> float:
    """Return what a clock is ahead of ours, which was asked for at one time and told at another.

    It was read somewhere in between: a slow answer says little, and what is `known` stays unless it
    cannot be right.
    """
    earliest, latest = told - answered, told - asked
    if known is None:
        return (earliest + latest) / 2
    return min(max(known, earliest), latest)


# What PostgreSQL's client library is told unless the URL says otherwise. A server that works ends
# a statement before the call that waits for it is over; one whose host is dead is noticed while
# something is being sent to it. Neither helps where the host is well and the server process or a
# pooler before it hangs: then the call's turn ends, see `_Turn`.
POSTGRESQL_OPTIONS = {
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "options": "-c statement_timeout=15000 -c lock_timeout=10000",
    "application_name": "pagoda-gateway",
}

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Turn:
    """One call's turn at a connection, which ends in time whatever the server does.

    The call's thread takes and leaves; the event loop ends it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._is_over = False

    def take(self, connection: "psycopg.Connection[Any]") -> None:
        """Note what the call's thread may come to wait for.

        Raises:
            TimeoutError: the turn is over.
        """
        with self._lock:
            self._check()
            self._connection = connection

    def check(self) -> None:
        """Raise TimeoutError if the turn is over."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        if self._is_over:
            raise TimeoutError("the time for this call is over")

    def leave(self) -> None:
        """Forget the connection: it is somebody else's from now on."""
        with self._lock:
            self._connection = None

    def end(self) -> None:
        """Give up: a thread that waits for the server gets an error from its connection now."""
        with self._lock:
            self._is_over = True
            if self._connection is not None and _cut_off(self._connection):
                logger.warning("the database did not answer in time; its connection is cut off")


class Database:
    """An engine with an asynchronous face; made by `open_database`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._clock_offset: float | None = None  # of the server's from our monotonic one
        self._here = threading.local()  # each thread's turn
        if self.is_postgresql:
            sa.event.listen(engine, "do_connect", self._connect)
            sa.event.listen(engine, "checkout", self._on_checkout)
            sa.event.listen(engine, "checkin", self._on_checkin)
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        self._look_ups = ThreadPoolExecutor(LOOK_UP_THREADS, thread_name_prefix="look-up")
        self._free_look_ups = threading.BoundedSemaphore(MAX_LOOK_UPS)

    @property
    def is_postgresql(self) -> bool:
        """Whether several transactions can write at a time: rows are locked, not the database."""
        return self._engine.dialect.name == "postgresql"

    def now(self) -> float:
        """Return Unix seconds by the one clock that all replicas share.

        It is that of PostgreSQL's host, as a connection was last asked for it; with a file this
        host's own.
        """
        offset = self._clock_offset
        return time.time() if offset is None else time.monotonic() + offset

    async def call(self, work: Callable[[sa.Connection], T]) -> T:
        """Return what `work` returns, done in one transaction: all of it, or nothing if it raises.

        Everybody waits for one thread, so work is short. Nothing is tried a second time here:
        whoever does so sees to it that work which was done counts once.

        Raises:
            TimeoutError: it took too long; it may yet be done.
            ReadOnlyError: the database takes no writes.
            SQLAlchemyError: the database refused. An OperationalError may come instead of the
                answer to a commit, so that it may have been done as well.
        """

        def transaction() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        async with asyncio.timeout(CALL_SECONDS):
            future = self._submit(self._thread, transaction, CALL_SECONDS)
            return await asyncio.wrap_future(future)

    async def first(self, statement: sa.Select[Any]) -> sa.RowMapping | None:
        """Return the first row that a statement finds."""
        return await self.call(lambda connection: connection.execute(statement).mappings().first())

    async def rows(self, statement: sa.Select[Any] | sa.CompoundSelect[Any]) -> list[sa.RowMapping]:
        """Return all rows that a statement finds."""
        return await self.call(lambda connection: list(connection.execute(statement).mappings()))

    async def scalar(self, statement: sa.Select[Any]) -> Any:
        """Return the first row's first value; None if there is no row."""
        return await self.call(lambda connection: connection.scalar(statement))

    async def look_up(self, statement: sa.Select[Any]) -> sa.RowMapping | None:
        """Return the first row that a statement finds, whatever `call` is busy with.

        Its deadline is the caller's: who gives up before it runs costs nothing.

        Raises:
            TimeoutError: too many wait already.
            SQLAlchemyError: the database refused.
        """
        if not self._free_look_ups.acquire(blocking=False):
            raise TimeoutError(f"{MAX_LOOK_UPS} look-ups wait for the database already")

        def read() -> sa.RowMapping | None:
            with self._reader.connect() as connection:
                return connection.execute(statement).mappings().first()

        future = self._submit(self._look_ups, read, LOOK_UP_SECONDS)
        future.add_done_callback(lambda _: self._free_look_ups.release())
        return await asyncio.wrap_future(future)

    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT that knows what to do about conflicts."""
        return (postgresql if self.is_postgresql else sqlite).insert(table)

    def _submit(
        self, threads: ThreadPoolExecutor, work: Callable[[], T], seconds: float
    ) -> Future[T]:
        """Have a thread do the work, within the time and whether or not anybody waits for it."""
        turn = _Turn()

        def in_turn() -> T:
            self._here.turn = turn
            try:
                return work()
            except sa.exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) in _REFUSES_WRITES:
                    raise ReadOnlyError(" ".join(str(error.orig).split())) from error
                raise
            finally:
                self._here.turn = None

        loop = asyncio.get_running_loop()
        alarm = loop.call_later(seconds, turn.end)
        future = threads.submit(in_turn)

        def on_done(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the alarm with it
                loop.call_soon_threadsafe(alarm.cancel)

        future.add_done_callback(on_done)
        return future

    def _connect(self, dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        """Make a connection that can be cut off while the dialect asks it its first things."""
        if turn := self._turn:
            turn.check()
        connection = dialect.connect(*arguments, **options)
        self._here.fresh = connection
        try:
            self._take(connection)
        except TimeoutError:
            connection.close()
            raise
        return connection

    def _on_checkout(self, connection: Any, _record: Any, _fairy: Any) -> None:
        """See whether a connection still answers, as `pool_pre_ping` does, which none could end.

        It is asked for the server's time.

        Raises:
            InvalidatePoolError: it does not: the pool makes others. Of one that was made just now
                what fails is the call's own error.
            TimeoutError: the turn is over.
        """
        self._take(connection)
        is_fresh = getattr(self._here, "fresh", None) is connection
        self._here.fresh = None
        try:
            self._read_clock(connection)
        except self._engine.dialect.loaded_dbapi.Error as error:
            if is_fresh:
                raise
            raise sa.exc.InvalidatePoolError from error

    def _read_clock(self, connection: "psycopg.Connection[Any]") -> None:
        """Ask outside of a transaction, which the call begins, and at its own isolation."""
        is_autocommit = connection.autocommit
        connection.autocommit = True
        asked = time.monotonic()
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        answered = time.monotonic()
        connection.autocommit = is_autocommit
        assert row is not None, "there is one"
        self._clock_offset = clock_offset(self._clock_offset, row[0], asked, answered)

    def _on_checkin(self, _connection: Any, _record: Any) -> None:
        if turn := self._turn:
            turn.leave()

    def _take(self, connection: "psycopg.Connection[Any]") -> None:
        if turn := self._turn:
            turn.take(connection)

    @property
    def _turn(self) -> _Turn | None:
        return getattr(self._here, "turn", None)

    async def close(self) -> None:
        """Finish what runs and close the connections."""
        async with asyncio.timeout(CLOSE_SECONDS):
            await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._look_ups.shutdown(wait=True, cancel_futures=True)
        self._thread.shutdown(wait=True)
        self._engine.dispose()


@contextlib.asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """Yield the database at the URL of PostgreSQL or of a SQLite file, with today's tables.

    The file is made if it is missing.

    Raises:
        DatabaseVersionError: a newer gateway made the tables.
        StartError: it cannot be opened, does not answer, or cannot keep every text.
    """
    address = database_address(url)
    if address.get_backend_name() == "sqlite":
        folder = Path(str(address.database)).parent
        with needed_folder(folder, VARIABLE):
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
    engine = _engine(address)
    try:
        await asyncio.to_thread(_check_encoding, engine)
        await asyncio.to_thread(migrate, engine)
        database = Database(engine)
        await database.call(lambda _: None)  # what time it is there
    except sa.exc.DBAPIError as error:
        engine.dispose()
        raise StartError(
            f"cannot open the ledger {address.set(query={}).render_as_string()}",
            " ".join(str(error.orig).split()),
            f"see to it that it is there and answers, or set {VARIABLE}",
        ) from error
    except BaseException:
        engine.dispose()
        raise
    try:
        yield database
    finally:
        await database.close()


def comparable(text: str) -> str:
    """Return a client's text as both databases take it, to compare or keep: one has no NUL."""
    return text.replace("\0", "\ufffd")


def database_address(url: str) -> URL:
    """Return the URL with the driver that is installed here, and with deadlines."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        return address
    missing = {n: v for n, v in POSTGRESQL_OPTIONS.items() if n not in address.query}
    return address.set(drivername="postgresql+psycopg").update_query_dict(missing)


def _engine(address: URL) -> sa.Engine:
    # One connection for each thread, and one for whoever migrates.
    options: dict[str, Any] = {
        "poolclass": sa.QueuePool,
        "pool_size": 1 + LOOK_UP_THREADS,
        "max_overflow": 0,
        "pool_timeout": CHECKOUT_SECONDS,
        "hide_parameters": True,  # an error that is logged shows no file, no key, no body
        "json_serializer": _json_text,  # a third of the work on rows of usage, by Python's own
        "json_deserializer": orjson.loads,
    }
    if address.get_backend_name() == "postgresql":
        # Names of statements that are prepared would be other gateways', too, behind a pooler that
        # gives each transaction any connection: one would get what another one has asked.
        options["connect_args"] = {"prepare_threshold": None, "client_encoding": "utf8"}
        # A stricter one, as roles and databases may have, refuses what replicas do at one time.
        options["isolation_level"] = "READ COMMITTED"
        return sa.create_engine(address, **options)
    options["connect_args"] = {"check_same_thread": False, "timeout": SQLITE_WAIT_SECONDS}
    engine = sa.create_engine(address, **options)
    sa.event.listen(engine, "connect", _configure_sqlite)
    return engine


def _check_encoding(engine: sa.Engine) -> None:
    """Refuse a database that takes some texts and not others, or gives them back as others.

    Raises:
        StartError: it is not of UTF-8.
    """
    if engine.dialect.name != "postgresql":
        return
    with engine.connect() as connection:
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if encoding != "UTF8":
        raise StartError(
            f"the ledger {engine.url.set(query={}).render_as_string()} keeps text as {encoding}",
            "it could not keep what clients write in other languages",
            "make its database anew: CREATE DATABASE pagoda TEMPLATE template0 ENCODING 'UTF8'",
        )


def _cut_off(connection: "psycopg.Connection[Any]") -> bool:
    """Shut a connection's socket down under the thread that uses it; False: it is closed."""
    import psycopg  # loaded already: a connection of its own is here

    try:
        held = socket.socket(fileno=os.dup(connection.fileno()))
        with held:
            # Had it been closed before it was copied, the number could be of any other file.
            connection.fileno()
            held.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return False
    return True


def _json_text(value: object) -> str:
    return orjson.dumps(value).decode()


def _configure_sqlite(connection: Any, _record: Any) -> None:
    _use_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")  # an acknowledged record survives a power cut
    connection.execute("PRAGMA foreign_keys=ON")


def _use_wal(connection: Any) -> None:
    """Try until it is so: of processes that make the file at one time some are refused at once."""
    deadline = time.monotonic() + SQLITE_WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(SQLITE_PAUSE_SECONDS)
        else:
            return
