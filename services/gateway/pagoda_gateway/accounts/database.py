"""The database of a gateway: one thread that does all its work, in transactions.

The event loop never waits for it. Knows SQLite and PostgreSQL, and no table.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

CALL_SECONDS = 20.0
T = TypeVar("T")


class Database:
    """An engine with an asynchronous face; made by `open_database`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")

    async def call(self, work: Callable[[sa.Connection], T]) -> T:
        """Return what `work` returns, done in one transaction: all of it, or nothing if it raises.

        Everybody waits for one thread, so work is short.

        Raises:
            TimeoutError: it took too long; it may yet be done.
            SQLAlchemyError: the database refused.
        """

        def transaction() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        async with asyncio.timeout(CALL_SECONDS):
            return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)

    async def first(self, statement: sa.Select[Any]) -> sa.RowMapping | None:
        """Return the first row that a statement finds."""
        return await self.call(lambda connection: connection.execute(statement).mappings().first())

    async def rows(self, statement: sa.Select[Any]) -> list[sa.RowMapping]:
        """Return all rows that a statement finds."""
        return await self.call(lambda connection: list(connection.execute(statement).mappings()))

    async def scalar(self, statement: sa.Select[Any]) -> Any:
        """Return the first row's first value; None if there is no row."""
        return await self.call(lambda connection: connection.scalar(statement))

    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT that knows what to do about conflicts."""
        dialect = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        return dialect.insert(table)

    async def create(self, metadata: sa.MetaData) -> None:
        """Make the tables that are missing, and the columns that older versions did not have."""
        await self.call(metadata.create_all)
        await self.call(lambda connection: _add_columns(connection, metadata))

    async def close(self) -> None:
        """Finish what runs and close the connections."""
        async with asyncio.timeout(CALL_SECONDS):
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown(wait=True)


@contextlib.asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """Yield the database at a SQLAlchemy URL; the folder of a SQLite file is made."""
    address = make_url(url)
    is_sqlite = address.get_backend_name() == "sqlite"
    if is_sqlite and address.database and address.database != ":memory:":
        await asyncio.to_thread(
            Path(address.database).parent.mkdir, parents=True, exist_ok=True, mode=0o700
        )
    options: dict[str, Any] = {"poolclass": sa.StaticPool} if is_sqlite else {}
    if is_sqlite:
        options["connect_args"] = {"check_same_thread": False, "timeout": 10}
    engine = sa.create_engine(address, **options)
    if is_sqlite:
        sa.event.listen(engine, "connect", _configure_sqlite)
    database = Database(engine)
    try:
        yield database
    finally:
        await database.close()


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # an acknowledged record survives a power cut
    connection.execute("PRAGMA foreign_keys=ON")


def _add_columns(connection: sa.Connection, metadata: sa.MetaData) -> None:
    """Add columns that may be null; that is all that tables have changed by so far."""
    for table in metadata.sorted_tables:
        missing = _missing_columns(connection, table)
        for column in missing:
            kind = column.type.compile(connection.dialect)
            statement = sa.text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
            try:
                with connection.begin_nested():
                    connection.execute(statement)
            except SQLAlchemyError:
                if column in _missing_columns(connection, table):  # no other replica was faster
                    raise


def _missing_columns(connection: sa.Connection, table: sa.Table) -> list[sa.Column[Any]]:
    present = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    return [column for column in table.columns if column.name not in present]
