"""A gateway on a real port, on a real NATS server, with a scripted router and worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from pydantic import SecretStr
from support.fixtures import *  # noqa: F403
from support.scripted_worker import (
    ScriptedRouter,
    ScriptedWorker,
    running_router,
    running_worker,
)
from support.tiny_tokenizer import write_model_folder

from pagoda.gateway.app import make_app
from pagoda.gateway.config import GatewaySettings
from pagoda.gateway.gateway import Gateway, open_gateway
from pagoda.gateway.server import http_server, listen
from pagoda.rpc.v1.status_pb2 import WorkerStatus
from pagoda.runtime.bus import Bus
from pagoda.runtime.health import Health
from pagoda.runtime.identity import new_worker_id
from pagoda.runtime.settings import CommonSettings
from pagoda.runtime.status import WorkerDirectory

API_KEY = "sk-test-0123456789"


@dataclass
class Running:
    """A gateway and how to reach it."""

    gateway: Gateway
    worker: ScriptedWorker
    router: ScriptedRouter
    url: str
    http: httpx.AsyncClient

    def sdk(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=API_KEY, max_retries=0, timeout=20
        )

    async def chat(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json={**CHAT, **body})

    async def completion(self, **body: Any) -> httpx.Response:
        values = {"model": "tiny", "prompt": "hello", "max_tokens": 8, **body}
        return await self.http.post("/v1/completions", json=values)

    async def receipt(self, answer: httpx.Response) -> dict[str, Any]:
        found = await self.http.get(f"/v1/receipts/{answer.headers['x-request-id']}")
        return dict(found.json())


CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello world"}],
    "max_tokens": 8,
}


async def heard_of(directory: WorkerDirectory, worker_id: str, *, gone: bool = False) -> None:
    """Return once a directory has heard of a worker, or of its end."""
    heard = asyncio.Event()

    def listen_for(who: str, status: WorkerStatus | None) -> None:
        if who == worker_id and (status is None) == gone:
            heard.set()

    directory.add_listener(listen_for)
    async with asyncio.timeout(10):
        await heard.wait()


Start = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return write_model_folder(tmp_path / "tiny")


@pytest_asyncio.fixture
async def bus(nats_common: CommonSettings) -> AsyncIterator[Bus]:
    async with Bus.connect(nats_common, name="workers") as connection:
        yield connection


@pytest.fixture
def start(nats_common: CommonSettings, bus: Bus, model_folder: Path) -> Start:
    """Start a gateway with settings of your own; the worker may be given too."""

    @contextlib.asynccontextmanager
    async def start_gateway(
        worker: ScriptedWorker | None = None, **settings: Any
    ) -> AsyncIterator[Running]:
        common = nats_common.model_copy(update={"model_name": "tiny"})
        gateway_settings = GatewaySettings(bootstrap_api_key=SecretStr(API_KEY), **settings)
        worker = worker or ScriptedWorker(bus)
        router = ScriptedRouter(bus)
        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"authorization": f"Bearer {API_KEY}"}
        async with (
            Bus.connect(nats_common, name="gateway") as gateway_bus,
            running_router(router),
            open_gateway(
                common=common,
                settings=gateway_settings,
                model_folder=model_folder,
                bus=gateway_bus,
                health=Health(),
                gateway_id=new_worker_id("gateway"),
            ) as gateway,
            http_server(make_app(gateway), listener),
            httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as http,
            running_worker(worker),
        ):
            for directory in (gateway.directory, router.directory):
                await heard_of(directory, worker.worker_id)
            yield Running(gateway, worker, router, url, http)

    return start_gateway


@pytest_asyncio.fixture
async def running(start: Start) -> AsyncIterator[Running]:
    async with start() as gateway:
        yield gateway
