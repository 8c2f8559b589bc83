"""Stores on a database of their own, and a clock that tests move."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.batch_files import LIMITS, Clock

from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.batches.batch_store import BatchStore
from pagoda_gateway.batches.file_store import FileStore
from pagoda_gateway.batches.tables import METADATA


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(f"sqlite:///{tmp_path}/ledger.sqlite3") as opened:
        await opened.create(METADATA)
        yield opened


@pytest.fixture
def files(database: Database, clock: Clock) -> FileStore:
    return FileStore(database, LIMITS, clock)


@pytest.fixture
def batches(database: Database, files: FileStore, clock: Clock) -> BatchStore:
    return BatchStore(database, files, clock)
