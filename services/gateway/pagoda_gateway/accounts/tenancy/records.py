"""Rows of a table as its administrators meet them: one by its id, a page of them, a new one."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.errors import ConflictError, InvalidRequestError, NotFoundError, shorten

Announce = Callable[[AccountChange], Awaitable[None]]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows in the order of their ids, and whether more follow."""

    rows: list[sa.RowMapping]
    has_more: bool


class Records:
    """One table: its first column is the id, which its maker chooses."""

    def __init__(self, database: Database, table: sa.Table, noun: str) -> None:
        """Keep what the messages name: `noun` is what one row is."""
        self.database = database
        self.table = table
        self._id = next(iter(table.columns))
        self._noun = noun

    async def page(
        self, *conditions: sa.ColumnElement[bool], after: str = "", limit: int = 100
    ) -> Page:
        """Return at most `limit` rows whose ids follow `after`."""
        statement = (
            sa.select(self.table)
            .where(self._id > comparable(after), *conditions)
            .order_by(self._id)
            .limit(limit + 1)
        )
        rows = await self.database.rows(statement)
        return Page(rows[:limit], has_more=len(rows) > limit)

    async def get(self, name: str) -> sa.RowMapping:
        """Return the row with this id.

        Raises:
            NotFoundError: there is none.
        """
        return await self.database.call(lambda connection: self.read(connection, name))

    async def create(self, values: dict[str, Any]) -> sa.RowMapping:
        """Store a new row and return it.

        Raises:
            ConflictError: its id is taken.
        """
        return await self.database.call(lambda connection: self.add(connection, values))

    def read(
        self, connection: sa.Connection, name: str, *, for_change: bool = False
    ) -> sa.RowMapping:
        """Return the row with this id; `for_change`: nobody else changes it in this transaction.

        Raises:
            NotFoundError: there is none.
        """
        row = self._find(connection, name, for_change=for_change)
        if row is None:
            raise NotFoundError(f"there is no {self._noun} {shorten(name)}", param="id")
        return row

    def require(self, connection: sa.Connection, name: str, *, param: str) -> None:
        """Hold the row that a body's field names, so that it is there when the transaction ends.

        Raises:
            InvalidRequestError: there is none.
        """
        if self._find(connection, name, for_change=True) is None:
            raise InvalidRequestError(
                f"'{param}': there is no {self._noun} {shorten(name)}; create it first", param=param
            )

    def add(self, connection: sa.Connection, values: dict[str, Any]) -> sa.RowMapping:
        """Store a new row; see `create`."""
        name = values[self._id.name]
        statement = self.database.insert(self.table).values(values).on_conflict_do_nothing()
        if connection.execute(statement.returning(self._id)).first() is None:
            raise ConflictError(
                f"the {self._noun} {shorten(name)} exists already, or did once: choose another id",
                param="id",
            )
        return self.read(connection, name)

    def change(self, connection: sa.Connection, name: str, values: dict[str, Any]) -> sa.RowMapping:
        """Set columns of a row and return it."""
        if values:
            connection.execute(sa.update(self.table).where(self._id == name).values(values))
        return self.read(connection, name)

    def _find(
        self, connection: sa.Connection, name: str, *, for_change: bool
    ) -> sa.RowMapping | None:
        statement = sa.select(self.table).where(self._id == comparable(name))
        if for_change:
            statement = statement.with_for_update()
        row = connection.execute(statement).mappings().first()
        if row is None or row.get("deleted_unix_seconds") is not None:
            return None
        return row
