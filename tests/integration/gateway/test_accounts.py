"""Every token is billed once; receipts say what a request used; tenants see their own only."""

import asyncio
from typing import Any

import httpx
import pytest
from support.jetstream import replay
from support.running_gateway import CHAT, Running, Start
from support.scripted_worker import ScriptedWorker

from pagoda_gateway.accounts.usage.stream import CONSUMER
from pagoda_runtime.messaging import subjects

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_receipt_agrees_with_usage(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, cached=3)) as running:
        answer = await running.chat(n=2)
        receipt, usage = await running.receipt(answer), answer.json()["usage"]
        assert receipt["status"] == "closed"
        assert receipt["outcome"] == "finished"
        assert receipt["prompt_tokens"] == usage["prompt_tokens"]
        assert receipt["output_tokens"] == usage["completion_tokens"] == 16
        assert receipt["cached_tokens"]["device"] == 3
        assert receipt["finish_reasons"] == ["length", "length"]
        assert receipt["stages_ms"]["prefill_compute"] == 4.0
        assert receipt["stages_ms"]["tokenize"] > 0
        assert 0 < receipt["ttft_ms"] <= receipt["e2e_ms"]
        assert receipt["id"] == answer.json()["id"]


async def test_streamed_request_has_a_receipt_under_the_clients_own_id(running: Running) -> None:
    headers = {"x-request-id": "order-66"}
    body = {**CHAT, "stream": True}
    answer = await running.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.headers["x-request-id"] == "order-66"
    receipt = await running.receipt(answer)
    assert receipt["output_tokens"] == 8
    assert receipt["request_id"] == answer.headers["x-pagoda-request-id"]


async def test_replaying_the_usage_log_changes_nothing(running: Running) -> None:
    answers = [await running.chat(max_tokens=tokens) for tokens in (3, 4, 5)]
    for answer in answers:
        await running.receipt(answer)
    before = await running.gateway.ledger.totals("default")
    for _ in range(2):
        await replay(running.gateway.bus, subjects.USAGE_STREAM, CONSUMER)
        last = await running.chat(max_tokens=1)
        async with asyncio.timeout(60):
            while (await running.receipt(last))["status"] != "closed":
                pass
    after = await running.gateway.ledger.totals("default")
    # The stream may hold requests of earlier tests; after a first replay their sum is constant.
    assert before[1] >= 12
    await replay(running.gateway.bus, subjects.USAGE_STREAM, CONSUMER)
    last = await running.chat(max_tokens=1)
    await running.receipt(last)
    final = await running.gateway.ledger.totals("default")
    assert final[1] == after[1] + 1


async def test_receipts_are_the_tenants_own(running: Running) -> None:
    answer = await running.chat()
    _, secret = await running.gateway.tenancy.api_keys.ensure("rival", "laptop")
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=running.url, headers=headers) as rival:
        assert (await running.receipt(answer))["status"] == "closed"
        with running.receipts_waiting(0):
            found = await rival.get(f"/v1/receipts/{answer.headers['x-request-id']}")
        assert found.status_code == 404
        await rival.post("/v1/chat/completions", json=CHAT)
    roots = {request.cache_root for request in running.worker.requests}
    assert len(roots) == 2  # and neither shares the other's cache


async def test_running_request_has_an_open_receipt(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=1)
    async with start(worker, receipt_wait_seconds=0.2) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat())
        await worker.wait_until(lambda: bool(worker.requests))
        request_id = worker.requests[0].request_id
        async with asyncio.timeout(60):
            while (found := await running.http.get(f"/v1/receipts/{request_id}")).is_error:
                pass
        assert found.json()["status"] == "open"
        worker.open_gate()
        await asking


async def test_unknown_receipt(start: Start) -> None:
    async with start(receipt_wait_seconds=0.05) as running:
        answer = await running.http.get("/v1/receipts/nothing")
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "invalid_request_error"
