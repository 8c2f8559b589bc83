"""Fixtures for every folder: `from support.fixtures import *  # noqa: F403` in its conftest.py.

`nats` and `redis` live as long as the test module; `common` points at both, with a home of its own.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus
from support.servers import Server, nats_server, redis_server, settings_for
from support.small_disk import SmallDisk, mounted_disk

__all__ = ["bus", "common", "nats", "nats_common", "redis", "small_disk"]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real NATS server with JetStream; subjects and streams are shared within the module."""
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Redis server; flush it where a test needs it empty."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def common(nats: Server, redis: Server, tmp_path: Path) -> CommonSettings:
    """Settings that point at both servers."""
    return settings_for(nats, redis, home=tmp_path)


@pytest.fixture
def nats_common(nats: Server, tmp_path: Path) -> CommonSettings:
    """Settings that point at NATS only."""
    return settings_for(nats, home=tmp_path)


@pytest_asyncio.fixture
async def bus(nats_common: CommonSettings) -> AsyncIterator[Bus]:
    """A connection of its own for each test."""
    async with Bus.connect(nats_common, name="test") as connection:
        yield connection


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of 32 MiB that a test may fill up; skipped where none can be mounted."""
    with mounted_disk(tmp_path / "disk") as disk:
        yield disk
