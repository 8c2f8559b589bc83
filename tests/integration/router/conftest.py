from collections.abc import AsyncIterator

import pytest_asyncio
from redis.asyncio import Redis
from support.fixtures import *  # noqa: F403

from pagoda_router.app import connect_redis
from pagoda_router.config import RouterSettings
from pagoda_runtime.configuration.settings import CommonSettings


@pytest_asyncio.fixture
async def client(common: CommonSettings) -> AsyncIterator[Redis]:
    """The router's own client on an empty Redis."""
    connection = connect_redis(common, RouterSettings())
    await connection.flushall()
    yield connection
    await connection.aclose()
