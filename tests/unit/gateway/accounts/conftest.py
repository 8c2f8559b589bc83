"""A ledger in a folder of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from pagoda_gateway.accounts.ledger import Ledger, open_ledger


@pytest_asyncio.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with open_ledger(f"sqlite:///{tmp_path}/home/ledger.sqlite3") as opened:
        yield opened
