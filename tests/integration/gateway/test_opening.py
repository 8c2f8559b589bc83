"""A gateway is there for its clients once it has heard who serves them."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from pydantic import SecretStr
from support.running_gateway import API_KEY
from support.scripted_worker import ScriptedWorker, running_worker

from pagoda_gateway import gateway as gateway_module
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.gateway import open_gateway
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.identity import new_worker_id
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.process.health import Health

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_it_is_not_open_before_it_has_heard_of_its_workers(
    nats_common: CommonSettings, model_folder: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "EXPIRY_SECONDS", 60.0)
    health = Health()
    opening = open_gateway(
        common=nats_common.model_copy(update={"model_name": "tiny"}),
        settings=GatewaySettings(bootstrap_api_key=SecretStr(API_KEY)),
        model_folder=model_folder,
        bus=bus,
        health=health,
        gateway_id=new_worker_id("gateway"),
    )
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        entering = asyncio.create_task(stack.enter_async_context(opening))
        while not health.report()["components"].get("gateway", {}).get("ready"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not entering.done()
        async with running_worker(ScriptedWorker(bus)):
            gateway = await entering
            assert "tiny" in gateway.catalog.entries
