"""A gateway dies in the middle of streams: the applier closes them, `/admin` can ask it to."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway_process import gateway_environment, launch_gateway, until_ready
from support.running_gateway import API_KEY, Start, running_applier
from support.scripted_worker import (
    ScriptedRouter,
    ScriptedWorker,
    running_router,
    running_worker,
)
from support.servers import free_port

from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageRecord
from pagoda_gateway.accounts.money.receipts import find_row
from pagoda_gateway.accounts.usage import reconcile
from pagoda_gateway.accounts.usage.deliveries import left_in
from pagoda_gateway.accounts.usage.forwarder import Forwarder
from pagoda_gateway.accounts.usage.outbox import Outbox
from pagoda_runtime import status
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN_KEY = "admin-key-0123456789"


@pytest.mark.slow
@pytest.mark.parametrize("is_adopted", [False, True])
async def test_what_a_killed_gateway_had_open_is_billed(
    nats_common: CommonSettings,
    model_folder: Path,
    bus: Bus,
    monkeypatch: pytest.MonkeyPatch,
    is_adopted: bool,
) -> None:
    """By what it noted, or, where its disk is lost, by workers' records."""
    worker = ScriptedWorker(bus, gate_index=5)
    port = free_port()
    environ = gateway_environment(nats_common, model_folder, port)
    url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {API_KEY}"}
    async with (
        running_router(ScriptedRouter(bus)),
        running_worker(worker),
        running_applier(nats_common) as applier,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http,
    ):

        async def row() -> Any:
            return await applier.ledger.database.call(
                lambda found: find_row(found, "default", worker.requests[0].request_id)
            )

        process = await launch_gateway(environ)
        try:
            await until_ready(http)
            body = {"model": "tiny", "prompt": "hello", "max_tokens": 9, "stream": True}
            async with (
                asyncio.timeout(60),
                http.stream("POST", "/v1/completions", json=body) as answer,
            ):
                lines = answer.aiter_lines()
                while not (await anext(lines)).startswith("data: {"):
                    pass
                while await row() is None:  # what is in its outbox only waits for its return
                    await applier.ledger.wait_applied(0.1)
                process.kill()
                await process.communicate()
        except httpx.TransportError:
            pass  # it is dead, as was meant
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        (request,) = worker.requests
        record = SequenceUsage(
            record_id="epoch-1",
            request_id=request.request_id,
            worker_id=worker.worker_id,
            role=Role.ROLE_DECODE,
            num_published_tokens=9,  # four of them after the kill
            num_computed_prompt_tokens=len(request.prompt_token_ids),
            compute_ns=1000,
            ended_unix_seconds=time.time(),
            finish_reason="abort",
        )
        await bus.publish_durable(
            subjects.USAGE_SEQUENCES,
            UsageRecord(batch=[UsageRecord(sequence=record)]),
            message_id="epoch-1",
            timeout_seconds=5,
        )
        ((_, _, num_noted),) = left_in(dead := only_folder(nats_common.home / "outbox"))
        if is_adopted:
            await adopt(bus, dead)
        else:
            shutil.rmtree(dead)
        for module, name in (
            (reconcile, "MIN_GONE_SECONDS"), (status, "SLOW_EXPIRY_SECONDS"),
            (status, "EXPIRY_SECONDS"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, 0.5)
        async with asyncio.timeout(60):
            while not (await applier.reconcile(0.5)).num_reconciled:
                await applier.ledger.wait_applied(0.1)
        closed = await row()
        assert (closed["outcome"], closed["prompt_tokens"]) == (
            "reconciled",
            len(request.prompt_token_ids),
        )
        assert 1 <= num_noted <= 5
        assert closed["output_tokens"] == (num_noted if is_adopted else 9)


def only_folder(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


async def adopt(bus: Bus, folder: Path) -> None:
    """Have another gateway send what a dead one left in its outbox."""
    outbox = await Outbox.open(folder.parent, "alive", max_bytes=1 << 20, on_state=lambda *_: None)
    forwarder = Forwarder(bus, outbox, folder.parent, timeout_seconds=5, unix_clock=time.time)
    adopting = asyncio.create_task(forwarder.adopt_forever())
    async with asyncio.timeout(60):
        while await asyncio.to_thread(folder.exists):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    adopting.cancel()
    await outbox.close()


async def test_the_administration_asks_an_applier(start: Start) -> None:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with start(admin_key=ADMIN_KEY) as running:
        answer = await running.chat()
        await running.receipt(answer)

        async def ask(body: dict[str, Any]) -> httpx.Response:
            return await running.http.post("/admin/ledger/reconcile", json=body, headers=headers)

        found = await ask({"gone_seconds": 60})
        assert found.json() == {
            "object": "reconciliation",
            "reconciled": 0,
            "lost": 0,
            "open": 0,
            "unbegun": 0,
        }
        assert (await ask({"gone_seconds": 1})).status_code == 400
        refused = await running.http.post("/admin/ledger/reconcile", json={})
        assert refused.status_code == 401
