"""A gateway on a real port, with a scripted router and worker on NATS; how to talk to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
from pydantic import SecretStr

from pagoda.rpc.v1.status_pb2 import WorkerStatus
from pagoda_gateway.accounts.database import open_database
from pagoda_gateway.accounts.usage.applier import Applier
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.gateway import Gateway, open_gateway
from pagoda_gateway.http.app import make_app
from pagoda_gateway.http.batches.background import batches_in_background
from pagoda_gateway.http.server import http_server, listen
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.identity import new_worker_id
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.process.health import Health
from pagoda_runtime.status import WorkerDirectory
from support.new_ledger import write_ledger
from support.scripted_worker import (
    ScriptedRouter,
    ScriptedWorker,
    running_router,
    running_worker,
    spell,
)
from support.tiny_tokenizer import EOS_ID

API_KEY = "sk-test-0123456789"
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello world"}],
    "max_tokens": 8,
}
PATIENCE: dict[str, float] = {
    "admit_timeout_seconds": 60.0,
    "limits_timeout_seconds": 30.0,
    "receipt_wait_seconds": 30.0,
    "route_timeout_seconds": 60.0,
    "usage_timeout_seconds": 30.0,
}
"""What a gateway waits for others on a busy machine, where a test does not say it."""


@dataclass
class Running:
    """A gateway and how to reach it."""

    gateway: Gateway
    worker: ScriptedWorker
    router: ScriptedRouter
    url: str
    http: httpx.AsyncClient

    def sdk(self) -> openai.AsyncOpenAI:
        # No certificates: to read them takes 20 ms of CPU for every client.
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=API_KEY, max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=False, timeout=60),
        )  # fmt: skip

    async def chat(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json={**CHAT, **body})

    async def completion(self, **body: Any) -> httpx.Response:
        values = {"model": "tiny", "prompt": "hello", "max_tokens": 8, **body}
        return await self.http.post("/v1/completions", json=values)

    async def prompt_text(self) -> str:
        """Return the text that the worker was asked to go on with last."""
        prompts = self.gateway.texts[self.gateway.served_name].prompts
        return await prompts.text_of(list(self.worker.requests[-1].prompt_token_ids))

    async def receipt(self, answer: httpx.Response) -> dict[str, Any]:
        found = await self.http.get(f"/v1/receipts/{answer.headers['x-request-id']}")
        return dict(found.json())

    @contextlib.contextmanager
    def receipts_waiting(self, seconds: float) -> Iterator[None]:
        """Have a receipt that is not there waited for so long, which else takes `PATIENCE`."""
        receipts = self.gateway.money.receipts
        before, receipts._wait_seconds = receipts._wait_seconds, seconds
        try:
            yield
        finally:
            receipts._wait_seconds = before

    async def events(self, path: str = "/v1/chat/completions", **body: Any) -> list[Any]:
        """Return a stream's data events without `[DONE]`; checks the framing."""
        payload = {**(CHAT if "chat" in path else {"model": "tiny"}), **body, "stream": True}
        async with self.http.stream("POST", path, json=payload) as answer:
            raw = (await answer.aread()).decode()
            assert answer.status_code == 200, raw
            assert answer.headers["content-type"].startswith("text/event-stream")
        assert raw.endswith("data: [DONE]\n\n")
        blocks = [block for block in raw.split("\n\n") if block and not block.startswith(":")]
        assert all(block.startswith("data: ") for block in blocks)
        return [orjson.loads(block[6:]) for block in blocks[:-1]]

    async def tokens_arrived(self, num_tokens: int, *, delivered: bool = False) -> None:
        """Return once the only generation has this many tokens, or has delivered them."""

        def has_arrived() -> bool:
            return any(
                (g.sequences[0].num_delivered if delivered else len(g.sequences[0].token_ids))
                >= num_tokens
                for g in self.gateway.admission._generations
            )

        async with asyncio.timeout(60):
            while not has_arrived():  # noqa: ASYNC110  (its writer owns the event)
                await asyncio.sleep(0)


Start = Callable[..., AbstractAsyncContextManager[Running]]


def text_of(chunks: list[Any], index: int = 0) -> str:
    """Return the text that chat chunks make for one choice."""
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(c["delta"].get("content") or "" for c in choices)


async def heard_of(directory: WorkerDirectory, worker_id: str, *, gone: bool = False) -> None:
    """Return once a directory has heard of a worker, or of its end; at once if it has already."""
    if (directory.get(worker_id) is None) == gone:
        return
    heard = asyncio.Event()

    def listen_for(who: str, status: WorkerStatus | None) -> None:
        if who == worker_id and (status is None) == gone:
            heard.set()

    directory.add_listener(listen_for)
    async with asyncio.timeout(60):
        await heard.wait()


def says(bus: Bus, folder: Path, text: str, **options: Any) -> ScriptedWorker:
    """Return a worker that answers everybody with this text, as the folder's tokenizer has it."""
    ids = ModelTokenizer.load(folder).encode(text, add_special_tokens=False)
    return ScriptedWorker(bus, token_at=spell([*ids, EOS_ID]), **options)


@contextlib.asynccontextmanager
async def running_applier(
    common: CommonSettings, settings: GatewaySettings | None = None
) -> AsyncIterator[Applier]:
    """Apply usage records as the process of that name does."""
    settings = settings or GatewaySettings()
    async with (
        Bus.connect(common, name="applier") as bus,
        open_database(settings.ledger_address(common.home)) as database,
    ):
        applier = Applier(bus, database, Health())
        async with applier.running(settings):
            yield applier


@contextlib.asynccontextmanager
async def running_gateway(
    common: CommonSettings,
    bus: Bus,
    model_folder: Path,
    worker: ScriptedWorker,
    *,
    has_applier: bool = True,
    **settings: Any,
) -> AsyncIterator[Running]:
    """Start a gateway that serves `worker`; `bus` is the worker's and the router's connection.

    `has_applier`: one brings its usage into the ledger.
    """
    common = common.model_copy(update={"model_name": "tiny"})
    values = {**PATIENCE, "bootstrap_api_key": SecretStr(API_KEY), **settings}
    gateway_settings = GatewaySettings(**values)
    if not gateway_settings.ledger_url.get_secret_value():
        write_ledger(common.home / "ledger.sqlite")
    router = ScriptedRouter(bus)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with (
        Bus.connect(common, name="gateway") as gateway_bus,
        running_router(router),
        running_worker(worker),
        running_applier(common, gateway_settings) if has_applier else contextlib.nullcontext(),
        open_gateway(
            common=common,
            settings=gateway_settings,
            model_folder=model_folder,
            bus=gateway_bus,
            health=Health(),
            gateway_id=new_worker_id("gateway"),
        ) as gateway,
        batches_in_background(gateway, app := make_app(gateway)),
        http_server(app, listener),
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60, verify=False) as http,
    ):
        await router.heartbeat.publish_now()  # not to wait for the next: /readyz says no until it
        await heard_of(gateway.directory, router.router_id)
        for directory in (gateway.directory, router.directory):
            await heard_of(directory, worker.worker_id)
        yield Running(gateway, worker, router, url, http)


def cancel_requests() -> None:
    """Cancel what answers requests of gateways in this event loop, as a server that ends does."""
    for task in asyncio.all_tasks():
        if "run_asgi" in repr(task.get_coro()):
            task.cancel()
