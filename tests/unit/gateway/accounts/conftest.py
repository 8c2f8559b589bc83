"""A database of its own for each test, of each kind; what is in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.clocks import Now

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/home/ledger.sqlite3"
    new: str = request.getfixturevalue("postgres").new_database()
    return new


@pytest_asyncio.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with open_database(url) as opened:
        yield opened


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return Ledger(database)


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def announced() -> list[AccountChange]:
    """What other gateways would hear."""
    return []


@pytest.fixture
def tenancy(database: Database, announced: list[AccountChange], now: Now) -> Tenancy:
    async def announce(change: AccountChange) -> None:
        announced.append(change)

    return Tenancy.of(database, announce, now)
