"""Limits come before moderators: who is over one costs no judgement, who is refused no limit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.limits import RATES
from support.moderation_server import ModerationServer, moderation_server
from support.running_gateway import CHAT, Running, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, redis_server, settings_for

from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN_KEY = "admin-key-0123456789"


@dataclass
class Moderated:
    """A gateway, the server that judges its prompts, and a client whose tier changes."""

    running: Running
    server: ModerationServer
    headers: dict[str, str]

    async def admin(self, method: str, path: str, body: object) -> dict[str, Any]:
        answer = await self.running.http.request(
            method, f"/admin/{path}", json=body, headers={"authorization": f"Bearer {ADMIN_KEY}"}
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def limit(self, name: str, **limits: Any) -> None:
        """Make a tenant of its own with these limits; its key is used from now on."""
        await self.admin("POST", "tiers", {"id": name, **limits})
        await self.admin("POST", "tenants", {"id": name, "tier": name})
        key = await self.admin("POST", "keys", {"tenant": name})
        self.headers = {"authorization": f"Bearer {key['key']}"}
        self.server.bodies.clear()

    async def ask(self, text: str) -> httpx.Response:
        body = {**CHAT, "messages": [{"role": "user", "content": text}]}
        return await self.running.http.post("/v1/chat/completions", json=body, headers=self.headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def moderated(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Moderated]:
    folder = tmp_path_factory.mktemp("moderated")
    with nats_server(folder) as nats, redis_server(folder) as redis:
        common = settings_for(nats, redis, home=folder)
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(moderation_server())
            file = folder / "safety.yaml"
            file.write_text(f"""
moderators:
  service: {{kind: http, url: '{server.url}', model: omni, timeout_seconds: 30}}
policies:
  - name: house
    tenants: ['*']
    rules:
      - {{name: evil, action: block, where: [input], moderator: service}}
""")
            bus = await stack.enter_async_context(Bus.connect(common, name="workers"))
            running = await stack.enter_async_context(
                running_gateway(
                    common, bus, model_folder, ScriptedWorker(bus),
                    admin_key=ADMIN_KEY, safety_file=file,
                )
            )  # fmt: skip
            running.gateway.limits.limiter._grace_seconds = 0.2
            money = running.gateway.money
            await money.prices.create("tiny", RATES)
            money.book.replace(await money.prices.all())
            yield Moderated(running, server, {})


async def test_a_request_over_its_limits_asks_no_moderator(moderated: Moderated) -> None:
    await moderated.limit("few", requests_per_minute=1)
    first = await moderated.ask("a good question")
    second = await moderated.ask("a good question")
    third = await moderated.ask("an evil question")
    assert [first.status_code, second.status_code, third.status_code] == [200, 429, 429]
    assert len(moderated.server.bodies) == 1


async def test_what_a_moderator_refuses_is_given_back_and_billed_to_nobody(
    moderated: Moderated,
) -> None:
    await moderated.limit("one", requests_per_minute=1, daily_budget_micros=1_000)
    refused = await moderated.ask("an evil question")
    async with asyncio.timeout(60):  # it is given back in the background
        while (good := await moderated.ask("a good question")).status_code == 429:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "content_policy_violation"
    assert good.status_code == 200
    billed = await moderated.running.http.get(
        f"/v1/receipts/{good.headers['x-request-id']}", headers=moderated.headers
    )
    with moderated.running.receipts_waiting(0):  # records come in their order
        missing = await moderated.running.http.get(
            f"/v1/receipts/{refused.headers['x-request-id']}", headers=moderated.headers
        )
    assert missing.status_code == 404
    assert billed.json()["cost"]["micros"] > 0


async def test_who_leaves_while_the_prompt_is_judged_holds_nothing(moderated: Moderated) -> None:
    await moderated.limit("leaver", concurrent_requests=1)
    server, limiter = moderated.server, moderated.running.gateway.limits.limiter
    server.gate.clear()
    asking = asyncio.ensure_future(moderated.ask("a good question"))
    async with asyncio.timeout(60):
        while not server.num_asking:  # noqa: ASYNC110  (another server's)
            await asyncio.sleep(0.001)
        (generation,) = moderated.running.gateway.admission._generations
        assert generation.stage == "moderation"
        assert limiter.num_live == 1
        asking.cancel()
        while limiter.num_live:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        server.gate.set()
        while (answer := await moderated.ask("a good question")).status_code == 429:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert answer.status_code == 200
