"""A database of its own for each test, of each kind; what is in it."""

import pytest
from support.clocks import Now

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy


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
