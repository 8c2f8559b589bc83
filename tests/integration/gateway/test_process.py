"""`python -m pagoda_gateway` as a process: starts from its environment, stops on SIGTERM."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from support.gateway_process import (
    START_SECONDS,
    gateway_environment,
    launch_gateway,
    until_ready,
)
from support.running_gateway import API_KEY, CHAT
from support.scripted_worker import (
    ScriptedRouter,
    ScriptedWorker,
    running_router,
    running_worker,
)
from support.servers import free_port

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(loop_scope="module")
async def worker(bus: Bus) -> AsyncIterator[ScriptedWorker]:
    async with running_router(ScriptedRouter(bus)), running_worker(ScriptedWorker(bus)) as made:
        yield made


async def test_sigterm_finishes_what_runs_then_exits(
    nats_common: CommonSettings, model_folder: Path, worker: ScriptedWorker
) -> None:
    port = free_port()
    process = await launch_gateway(gateway_environment(nats_common, model_folder, port))
    headers = {"authorization": f"Bearer {API_KEY}"}
    try:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            await until_ready(http)
            assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
            worker.requests.clear()
            worker.gate_index = 2
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(http.post("/v1/chat/completions", json=CHAT))
                await worker.wait_until(lambda: bool(worker.requests))
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(60):
                    while (await http.get("/readyz")).status_code == 200:
                        pass
                worker.open_gate()
                assert (await asking).status_code == 200
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert b"Traceback" not in output
        assert b"never awaited" not in output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_misspelt_setting_refuses_to_start(
    nats_common: CommonSettings, model_folder: Path
) -> None:
    environ = gateway_environment(nats_common, model_folder, free_port())
    process = await launch_gateway({**environ, "PAGODA_GATEWAY_DRAIN_SECS": "3"})
    async with asyncio.timeout(START_SECONDS):
        output, _ = await process.communicate()
    assert process.returncode == 2
    assert b"PAGODA_GATEWAY_DRAIN_SECONDS" in output
    assert b"Traceback" not in output


async def test_health_and_metrics_have_a_port_of_their_own(
    nats_common: CommonSettings, model_folder: Path
) -> None:
    health = free_port()
    environ = gateway_environment(nats_common, model_folder, free_port())
    process = await launch_gateway(environ | {"PAGODA_GATEWAY_HEALTH_PORT": str(health)})
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{health}") as http:
            async with asyncio.timeout(START_SECONDS):
                while "nats" not in await answer_of(http, "/readyz"):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # another process: there is no event to wait on
            assert "pagoda_bus_reconnects_total" in await answer_of(http, "/metrics")
    finally:
        process.kill()
        await process.communicate()


async def answer_of(http: httpx.AsyncClient, path: str) -> str:
    try:
        return (await http.get(path)).text
    except httpx.TransportError:
        return ""
