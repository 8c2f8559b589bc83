"""Prices in the database. A new one never changes what was used before it."""

import secrets
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.accounts.money.price import CACHE_TIERS, Price
from pagoda_gateway.accounts.money.tables import PRICES
from pagoda_gateway.accounts.tenancy.records import Announce, Clock, Page, Records
from pagoda_gateway.errors import ConflictError, InvalidRequestError, shorten

_FIELDS = tuple(Price.__dataclass_fields__)


class Prices:
    """Sets prices, withdraws those that have not begun, lists them."""

    def __init__(self, database: Database, announce: Announce, clock: Clock) -> None:
        self._database = database
        self._announce = announce
        self._clock = clock
        self.records = Records(database, PRICES, "price")

    async def create(
        self, model: str, rates: dict[str, int], *, valid_from_unix_seconds: float | None = None
    ) -> sa.RowMapping:
        """Store what a model costs from a moment on, or from now on.

        `rates` are the columns of that name.

        Raises:
            InvalidRequestError: it would begin in the past, or a cached token would cost more than
                one that is computed.
            ConflictError: another price of the model begins at that moment.
        """
        now = self._clock()
        begins = now if valid_from_unix_seconds is None else valid_from_unix_seconds
        if begins < now:
            raise InvalidRequestError(
                f"'valid_from' is {begins:.0f} and has passed: what was used since then has its "
                "price; leave it out for a price from now on",
                param="valid_from",
            )
        for tier in CACHE_TIERS:
            name = f"cached_{tier}_micros"
            if rates[name] > rates["input_micros"]:
                raise InvalidRequestError(
                    f"'{name}' is {rates[name]}, more than 'input_micros', {rates['input_micros']}:"
                    " what a request costs at most could not be told beforehand",
                    param=name,
                )
        values = {
            **rates,
            "price_id": f"price-{secrets.token_hex(8)}",
            "model": model,
            "valid_from_unix_seconds": begins,
            "created_unix_seconds": now,
        }

        def create(connection: sa.Connection) -> sa.RowMapping:
            for price in prices_of_models(connection, [model]):
                if price.valid_from_unix_seconds == begins:
                    raise ConflictError(
                        f"the price {price.price_id} of {shorten(model)} begins at that moment: "
                        "withdraw it, or choose another 'valid_from'",
                        param="valid_from",
                    )
            return self.records.add(connection, values)

        row = await self._database.call(create)
        await self._announce(AccountChange(priced_model=model))
        return row

    async def withdraw(self, price_id: str) -> sa.RowMapping:
        """Take back a price that has not begun.

        Raises:
            NotFoundError: there is no such price.
            ConflictError: it has begun.
        """
        now = self._clock()

        def withdraw(connection: sa.Connection) -> sa.RowMapping:
            row = self.records.read(connection, price_id, for_change=True)
            if row["withdrawn_unix_seconds"] is not None:
                return row
            if row["valid_from_unix_seconds"] <= now:
                raise ConflictError(
                    f"the price {price_id} has begun, and receipts have it: set another one that "
                    "follows it"
                )
            # Kept: a gateway that has not heard of it yet may still use it.
            return self.records.change(connection, price_id, {"withdrawn_unix_seconds": now})

        row = await self._database.call(withdraw)
        await self._announce(AccountChange(priced_model=row["model"]))
        return row

    async def page(self, *, model: str | None = None, after: str = "", limit: int = 100) -> Page:
        """Return some that are not withdrawn, of one model or of all."""
        conditions: list[sa.ColumnElement[bool]] = [PRICES.c.withdrawn_unix_seconds.is_(None)]
        if model is not None:
            conditions.append(PRICES.c.model == comparable(model))
        return await self.records.page(*conditions, after=after, limit=limit)

    async def all(self) -> list[Price]:
        """Return all that are not withdrawn."""
        statement = sa.select(PRICES).where(PRICES.c.withdrawn_unix_seconds.is_(None))
        return [price_of(row) for row in await self._database.rows(statement)]


def price_of(row: sa.RowMapping) -> Price:
    """Return a row of `PRICES` as a price."""
    values: dict[str, Any] = {name: row[name] for name in _FIELDS}
    return Price(**values)


def prices_with_ids(connection: sa.Connection, price_ids: Collection[str]) -> list[Price]:
    """Return these prices, withdrawn or not."""
    statement = sa.select(PRICES).where(PRICES.c.price_id.in_(sorted(price_ids)))
    return [price_of(row) for row in connection.execute(statement).mappings()]


def prices_of_models(connection: sa.Connection, models: Collection[str]) -> list[Price]:
    """Return all prices of some models that are not withdrawn."""
    statement = sa.select(PRICES).where(
        PRICES.c.model.in_(sorted(models)), PRICES.c.withdrawn_unix_seconds.is_(None)
    )
    return [price_of(row) for row in connection.execute(statement).mappings()]
