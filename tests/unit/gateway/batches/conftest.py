"""Stores on a database of their own, and a clock that tests move."""

import pytest
from support.batch_files import LIMITS, Clock

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.batches.batch_store import BatchStore
from pagoda_gateway.batches.file_store import FileStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files(database: Database, clock: Clock) -> FileStore:
    return FileStore(database, LIMITS, clock)


@pytest.fixture
def batches(database: Database, files: FileStore, clock: Clock) -> BatchStore:
    return BatchStore(database, files, clock, clock)
