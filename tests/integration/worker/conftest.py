from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.fixtures import *  # noqa: F403
from support.servers import Server, settings_for
from support.tiny_checkpoints import make_tiny_checkpoint
from support.worker_cluster import Cluster

from pagoda.engine import EngineConfig, LoadedModel, load_model
from pagoda.runtime.settings import CommonSettings


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> LoadedModel:
    return load_model(checkpoint, EngineConfig(dtype="float32"))


@pytest.fixture
def worker_common(nats: Server, checkpoint: Path, tmp_path: Path) -> Iterator[CommonSettings]:
    yield settings_for(nats, home=tmp_path, model=str(checkpoint), dtype="float32")


@pytest_asyncio.fixture
async def cluster(worker_common: CommonSettings, model: LoadedModel) -> AsyncIterator[Cluster]:
    async with Cluster.open(worker_common, model) as opened:
        yield opened
