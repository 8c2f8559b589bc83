"""Stores on a database of their own, and a clock that tests move."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.batch_files import LIMITS, Clock

from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.batches.batch_store import BatchStore
from pagoda_gateway.batches.file_store import FileStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.sqlite3"
    new: str = request.getfixturevalue("postgres").new_database()
    return new


@pytest_asyncio.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with open_database(url) as opened:
        yield opened


@pytest.fixture
def files(database: Database, clock: Clock) -> FileStore:
    return FileStore(database, LIMITS, clock)


@pytest.fixture
def batches(database: Database, files: FileStore, clock: Clock) -> BatchStore:
    return BatchStore(database, files, clock)
