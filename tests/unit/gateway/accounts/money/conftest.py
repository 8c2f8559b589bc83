"""Prices in a database of each kind, and who hears of them."""

from typing import Any

import pytest
import sqlalchemy as sa
from support.clocks import Now
from support.prices import RATES, Rows, SetPrice

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.prices import Prices
from pagoda_gateway.accounts.tables import USAGE


@pytest.fixture
def prices(database: Database, announced: list[AccountChange], now: Now) -> Prices:
    async def announce(change: AccountChange) -> None:
        announced.append(change)

    return Prices(database, announce, now)


@pytest.fixture
def set_price(prices: Prices, now: Now) -> SetPrice:
    async def set_price(model: str = "m", valid_from: float | None = None, **rates: int) -> str:
        row = await prices.create(model, RATES | rates, valid_from_unix_seconds=valid_from)
        return str(row["price_id"])

    now.seconds = 1.0  # before the requests of `support.usage_records`
    return set_price


@pytest.fixture
def rows(ledger: Ledger) -> Rows:
    async def read() -> dict[str, dict[str, Any]]:
        found = await ledger.database.rows(sa.select(USAGE))
        return {str(row["request_id"]): dict(row) for row in found}

    return read
