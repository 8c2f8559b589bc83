from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.fixtures import *  # noqa: F403
from support.seeds import seed_of_tests
from support.servers import Server, settings_for
from support.thread_queue import ThreadQueue
from support.tiny_checkpoints import make_tiny_checkpoint
from support.worker_cluster import Cluster

from pagoda_engine import Engine, EngineConfig, LoadedModel, StepResult, load_model
from pagoda_runtime.configuration.settings import CommonSettings


@pytest.fixture(autouse=True)
def checked_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine recounts its blocks after each step; a wrong count fails the engine."""
    step = Engine.step

    def step_and_check(self: Engine) -> StepResult:
        result = step(self)
        self.check_invariants()
        return result

    monkeypatch.setattr(Engine, "step", step_and_check)


@pytest.fixture(params=["synchronous", "overlapped"], autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines whose steps are done when they are launched, and engines as they are on a GPU."""
    queues: list[ThreadQueue] = []
    init = Engine.__init__

    def init_overlapped(self: Engine, *args: Any, **kwargs: Any) -> None:
        queues.append(ThreadQueue(seed + len(queues)))
        init(self, *args, queue=queues[-1], **kwargs)

    if request.param == "overlapped":
        seed = seed_of_tests()
        monkeypatch.setattr(Engine, "__init__", init_overlapped)
    yield
    for queue in queues:
        queue.close()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> LoadedModel:
    return load_model(checkpoint, EngineConfig(dtype="float32"))


@pytest.fixture
def worker_common(nats: Server, checkpoint: Path, tmp_path: Path) -> CommonSettings:
    return settings_for(nats, home=tmp_path, model=str(checkpoint), dtype="float32")


@pytest_asyncio.fixture
async def cluster(worker_common: CommonSettings, model: LoadedModel) -> AsyncIterator[Cluster]:
    async with Cluster.open(worker_common, model) as opened:
        yield opened
