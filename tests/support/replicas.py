"""Two gateways with one ledger and one Redis, and clients whose keys have limits."""

import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagoda_gateway.accounts.limits import limiter
from pagoda_runtime.messaging.bus import Bus
from support.limits import RATES
from support.running_gateway import CHAT, Running, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import Server, nats_server, redis_server, settings_for

ADMIN_KEY = "admin-key-0123456789"
MAX_TOKENS = 8
_numbers = itertools.count()


@dataclass
class Replicas:
    """Gateways that share everything but the worker that each has."""

    first: Running
    second: Running
    workers: list[ScriptedWorker]
    redis: Server

    async def admin(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = await self.first.http.request(
            method, f"/admin/{path}", json=body, headers={"authorization": f"Bearer {ADMIN_KEY}"}
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def client(self, *, where: str = "tenants", **limits: Any) -> "Client":
        """Make a tenant with a key; the tenant, its organisation or the key has these limits."""
        number = next(_numbers)
        tier = None
        if limits:
            tier = (await self.admin("POST", "tiers", {"id": f"tier-{number}", **limits}))["id"]
        tiers = {where: tier}
        organisation, tenant = f"organisation-{number}", f"tenant-{number}"
        await self.admin(
            "POST", "organisations", {"id": organisation, "tier": tiers.get("organisations")}
        )
        await self.admin(
            "POST",
            "tenants",
            {"id": tenant, "organisation": organisation, "tier": tiers.get("tenants")},
        )
        key = await self.admin("POST", "keys", {"tenant": tenant, "tier": tiers.get("keys")})
        return Client(self, tenant, key["key"], tier or "")


@dataclass
class Client:
    """Somebody with a key."""

    replicas: Replicas
    tenant: str
    key: str
    tier: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    async def ask(self, *, second: bool = False, **body: Any) -> httpx.Response:
        running = self.replicas.second if second else self.replicas.first
        payload = {**CHAT, "max_tokens": MAX_TOKENS, **body}
        return await running.http.post("/v1/chat/completions", json=payload, headers=self.headers)

    @contextlib.asynccontextmanager
    async def stream(self, *, second: bool = False, **body: Any) -> AsyncIterator[httpx.Response]:
        running = self.replicas.second if second else self.replicas.first
        payload = {**CHAT, "max_tokens": MAX_TOKENS, "stream": True, **body}
        async with running.http.stream(
            "POST", "/v1/chat/completions", json=payload, headers=self.headers
        ) as answer:
            yield answer


@contextlib.asynccontextmanager
async def running_replicas(
    folder: Path, model_folder: Path, **settings: Any
) -> AsyncIterator[Replicas]:
    """Start them with what they share, all of it in `folder`; `settings` are of both."""
    with (
        nats_server(folder) as nats,
        redis_server(folder) as redis,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(limiter, "TICK_SECONDS", 0.1)
        common = settings_for(nats, redis, home=folder)
        async with contextlib.AsyncExitStack() as stack:
            bus = await stack.enter_async_context(Bus.connect(common, name="workers"))
            workers = [ScriptedWorker(bus) for _ in range(2)]
            first, second = [
                await stack.enter_async_context(
                    running_gateway(
                        common, bus, model_folder, worker,
                        admin_key=ADMIN_KEY, keepalive_seconds=0.4, limit_queue_requests=2,
                        **{"limit_queue_seconds": 5.0, **settings},
                    )
                )
                for worker in workers
            ]  # fmt: skip
            for running in (first, second):
                await set_price(running)
                running.gateway.limits.limiter._grace_seconds = 0.2
            yield Replicas(first, second, workers, redis)


async def set_price(running: Running) -> None:
    """Have every token of the model cost the same from now on, as this gateway knows it."""
    money = running.gateway.money
    if not await money.prices.all():
        await money.prices.create("tiny", RATES)
    money.book.replace(await money.prices.all())
