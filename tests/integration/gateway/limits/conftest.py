"""A Redis without anything in it for each test, and a clock that stands still."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from support.clocks import Now
from support.new_ledger import write_ledger
from support.servers import Server

from pagoda_gateway.accounts.database import Database, open_database


@pytest.fixture
def now() -> Now:
    clock = Now()
    clock.seconds = 1_795_000_000.25
    return clock


@pytest_asyncio.fixture
async def client(redis: Server) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis.url) as opened:
        await opened.flushall()
        yield opened


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    write_ledger(path := tmp_path / "ledger.sqlite")
    async with open_database(f"sqlite:///{path}") as opened:
        yield opened
