"""A gateway for every test: `running` is shared by a module, `start` makes one of your own."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.fixtures import *  # noqa: F403
from support.running_gateway import Running, Start, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for
from support.tiny_tokenizer import write_model_folder

from pagoda_gateway.accounts.usage import forwarder
from pagoda_gateway.http.generation import response
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus


@pytest.fixture(autouse=True)
def _records_hardly_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tests wait for a receipt."""
    monkeypatch.setattr(forwarder, "GATHER_SECONDS", 0.02)


@pytest.fixture(autouse=True)
def _explanations_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine would cut, tests wait for."""
    monkeypatch.setattr(response, "EXPLAIN_SECONDS", 60.0)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest_asyncio.fixture(loop_scope="module")
async def bus(nats_common: CommonSettings) -> AsyncIterator[Bus]:
    async with Bus.connect(nats_common, name="workers") as connection:
        yield connection


@pytest.fixture
def start(nats_common: CommonSettings, bus: Bus, model_folder: Path) -> Start:
    @contextlib.asynccontextmanager
    async def start_gateway(
        worker: ScriptedWorker | None = None, **settings: Any
    ) -> AsyncIterator[Running]:
        worker = worker or ScriptedWorker(bus)
        async with running_gateway(nats_common, bus, model_folder, worker, **settings) as running:
            yield running

    return start_gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("shared")
    with nats_server(folder) as own_nats:  # so that its router answers nobody else
        common = settings_for(own_nats, home=folder)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(common, bus, model_folder, ScriptedWorker(bus)) as running,
        ):
            yield running


@pytest.fixture
def running(shared_gateway: Running) -> Running:
    shared_gateway.worker.requests.clear()
    shared_gateway.worker.cancels.clear()
    shared_gateway.router.requests.clear()
    shared_gateway.router.answer = None
    shared_gateway.router.is_silent = False
    return shared_gateway
