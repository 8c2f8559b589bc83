"""Two gateways on one PostgreSQL: what one changes, the other hears of."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.postgres import Postgres
from support.running_gateway import CHAT, Running, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for

from pagoda_gateway.accounts.money import price_book
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN_KEY = "admin-key-0123456789"
NEWS_SECONDS = 5.0  # a fraction of one on an idle machine; without news it takes ten


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    postgres: Postgres, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[Running]]:
    url, folder = postgres.new_database(), tmp_path_factory.mktemp("replicas")
    with nats_server(folder) as nats, pytest.MonkeyPatch.context() as patch:
        patch.setattr(price_book, "READ_SECONDS", 3600.0)  # by news, or not at all
        common = settings_for(nats, home=folder)
        async with contextlib.AsyncExitStack() as stack:
            bus = await stack.enter_async_context(Bus.connect(common, name="workers"))
            yield [
                await stack.enter_async_context(
                    running_gateway(
                        common, bus, model_folder, ScriptedWorker(bus),
                        admin_key=ADMIN_KEY, ledger_url=url,
                    )
                )
                for _ in range(2)
            ]  # fmt: skip


async def admin(running: Running, method: str, path: str, body: object = None) -> dict[str, Any]:
    answer = await running.http.request(
        method, f"/admin/{path}", json=body, headers={"authorization": f"Bearer {ADMIN_KEY}"}
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def use(running: Running, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return await running.http.post("/v1/chat/completions", json=CHAT, headers=headers)


async def seconds_until(running: Running, key: str, status: int) -> float:
    """Ask for nothing but models, again and again, until the status is as wanted."""
    headers, started = {"authorization": f"Bearer {key}"}, time.monotonic()
    async with asyncio.timeout(10):
        while (await running.http.get("/v1/models", headers=headers)).status_code != status:
            pass
    return time.monotonic() - started


@pytest.mark.alone
@pytest.mark.parametrize("what", ["key", "tenant"])
async def test_revoked_on_both_within_a_second(replicas: list[Running], what: str) -> None:
    first, second = replicas
    await admin(first, "POST", "tenants", {"id": f"leaving-{what}"})
    key = await admin(first, "POST", "keys", {"tenant": f"leaving-{what}"})
    for running in replicas:
        assert (await use(running, key["key"])).status_code == 200
    path = f"keys/{key['id']}" if what == "key" else f"tenants/leaving-{what}"
    await admin(first, "DELETE", path)
    assert (await use(first, key["key"])).status_code == 401
    assert await seconds_until(second, key["key"], 401) < 1.0


async def test_rotated_on_both(replicas: list[Running]) -> None:
    first, second = replicas
    await admin(first, "POST", "tenants", {"id": "rotating"})
    old = await admin(first, "POST", "keys", {"tenant": "rotating"})
    for running in replicas:
        assert (await use(running, old["key"])).status_code == 200
    new = await admin(second, "POST", f"keys/{old['id']}/rotate", {"overlap_seconds": 0})
    for running in replicas:
        assert await seconds_until(running, old["key"], 401) < NEWS_SECONDS
        assert (await use(running, new["key"])).status_code == 200


async def test_receipts_and_last_uses_are_shared(replicas: list[Running]) -> None:
    first, second = replicas
    await admin(first, "POST", "tenants", {"id": "shared"})
    key = await admin(first, "POST", "keys", {"tenant": "shared"})
    answer = await use(first, key["key"])
    receipt = await second.http.get(
        f"/v1/receipts/{answer.headers['x-request-id']}",
        headers={"authorization": f"Bearer {key['key']}"},
    )
    assert receipt.json()["status"] == "closed"
    assert (await admin(second, "GET", f"keys/{key['id']}"))["last_used_at"] is None
    for running in replicas:
        await running.gateway.key_use.flush()  # as every minute
    assert (await admin(second, "GET", f"keys/{key['id']}"))["last_used_at"]


async def test_a_price_is_known_on_both(replicas: list[Running]) -> None:
    first, second = replicas
    price = {"model": "tiny", "input_micros": 1_000_000, "output_micros": 2_000_000}
    made = await admin(first, "POST", "prices", price)
    async with asyncio.timeout(60):
        for running in replicas:  # the first hears of it as the second does
            book = running.gateway.price_book
            while book.price_id_at("tiny", time.time()) != made["id"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    answers = [await running.chat() for running in replicas]
    for running, answer in zip(replicas, reversed(answers), strict=True):
        receipt = await running.receipt(answer)
        assert receipt["cost"]["price_id"] == made["id"]
        assert receipt["cost"] == json.loads(answer.headers["x-pagoda-receipt"])["cost"]
    balances = (await admin(second, "GET", "balances?tenant=default"))["data"]
    assert balances[0]["requests"] == 2
    assert (await admin(first, "GET", "chains/default"))["break"] is None
