"""What a request costs that has no answer: nothing, unless the client ended it itself."""

import asyncio
from typing import Any

import pytest
from support.running_gateway import CHAT, Running, Start
from support.scripted_worker import ScriptedWorker

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda.rpc.v1 import route_pb2
from pagoda_gateway.openai.choices import ChatSerializer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN_KEY = "admin-key-0123456789"
PRICE = {"model": "tiny", "input_micros": 1_000_000, "output_micros": 1_000_000}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/chat/completions", {**CHAT, "n": 2}),
    ("/v1/responses", {"model": "tiny", "input": "hello"}),
    ("/v1/embeddings", {"model": "tiny", "input": "hello"}),
]


async def costs(running: Running, answer: Any) -> tuple[str, int, int, int]:
    """Return the outcome, prompt tokens, output tokens and attempts of the only receipt."""
    receipt = await running.receipt(answer)
    assert receipt["cost"]["micros"] == receipt["prompt_tokens"] + receipt["output_tokens"]
    assert receipt["cached_tokens"]["device"] <= receipt["prompt_tokens"]
    return (
        receipt["outcome"], receipt["prompt_tokens"], receipt["output_tokens"],
        receipt["attempts"],
    )  # fmt: skip


async def set_price(running: Running) -> None:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    answer = await running.http.post("/admin/prices", json=PRICE, headers=headers)
    assert answer.status_code == 200
    async with asyncio.timeout(60):
        while not running.gateway.price_book.price_id_at("tiny", 1e12):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_what_no_worker_was_asked_costs_nothing(start: Start) -> None:
    async with start(admin_key=ADMIN_KEY) as running:
        await set_price(running)
        running.router.answer = route_pb2.RouteResponse(
            status=route_pb2.ROUTE_STATUS_NO_WORKER, message="none is alive"
        )
        for path, body in ASKED:
            answer = await running.http.post(path, json=body)
            assert answer.status_code == 503, path
            assert await costs(running, answer) == ("failed", 0, 0, 0), path


@pytest.mark.parametrize("error", ["out of blocks", ""])
async def test_what_workers_lost_costs_nothing(start: Start, bus: Any, error: str) -> None:
    status = pb.ADMIT_STATUS_ACCEPTED if error else pb.ADMIT_STATUS_DRAINING
    worker = ScriptedWorker(bus, gate_index=0, finish_error=error, admit_status=status, cached=2)
    async with start(worker, admin_key=ADMIN_KEY) as running:
        await set_price(running)
        for path, body in ASKED[:-1]:
            answer = await running.http.post(path, json=body)
            assert answer.status_code >= 500, path
            outcome, *tokens, num_attempts = await costs(running, answer)
            assert (outcome, tokens, num_attempts > 1) == ("failed", [0, 0], True), path


async def test_a_failed_stream_costs_what_its_client_got(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3, cached=2)
    async with start(worker, admin_key=ADMIN_KEY) as running, asyncio.TaskGroup() as tasks:
        await set_price(running)
        asking = tasks.create_task(running.chat(max_tokens=12, stream=True))
        await worker.wait_until(lambda: bool(worker.requests))
        await running.tokens_arrived(3, delivered=True)
        worker.finish_error = "out of blocks"
        worker._work.set()
        num_prompt_tokens = len(worker.requests[0].prompt_token_ids)
        assert (await costs(running, await asking))[:3] == ("failed", num_prompt_tokens, 3)


async def test_a_deadline_costs_the_prompt_that_a_worker_had(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker, admin_key=ADMIN_KEY) as running:
        await set_price(running)
        short = {"x-pagoda-timeout": "0.5"}
        while True:  # a busy machine may not get so far in time
            answer = await running.http.post("/v1/chat/completions", json=CHAT, headers=short)
            assert answer.status_code == 504
            if worker.requests:
                break
            assert await costs(running, answer) == ("failed", 0, 0, 0)
        num_prompt_tokens = len(worker.requests[0].prompt_token_ids)
        assert await costs(running, answer) == ("failed", num_prompt_tokens, 0, 1)
        at_once = {"x-pagoda-timeout": "0.000001"}
        answer = await running.http.post("/v1/chat/completions", json=CHAT, headers=at_once)
        assert await costs(running, answer) == ("failed", 0, 0, 0)


async def test_who_leaves_pays_the_prompt_that_a_worker_had(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker, admin_key=ADMIN_KEY) as running:
        await set_price(running)
        named = {"x-request-id": "the-one-that-left"}
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(
                running.http.post("/v1/chat/completions", json=CHAT, headers=named)
            )
            await worker.wait_until(lambda: bool(worker.requests))
            asking.cancel()
        async with asyncio.timeout(60):
            receipt: dict[str, Any] = {}
            while "cost" not in receipt:  # once it is sealed
                receipt = (await running.http.get("/v1/receipts/the-one-that-left")).json()
        num_prompt_tokens = len(worker.requests[0].prompt_token_ids)
        assert (receipt["outcome"], receipt["prompt_tokens"]) == ("disconnected", num_prompt_tokens)
        assert receipt["cost"]["micros"] == num_prompt_tokens


async def test_an_answer_that_is_too_long_to_be_whole_costs_its_prompt(
    start: Start, bus: Any
) -> None:
    worker = ScriptedWorker(bus)
    async with start(worker, admin_key=ADMIN_KEY, max_whole_tokens=20) as running:
        await set_price(running)
        answer = await running.chat(max_tokens=60)
        assert answer.status_code == 400
        num_prompt_tokens = len(worker.requests[0].prompt_token_ids)
        assert (await costs(running, answer))[:3] == ("failed", num_prompt_tokens, 0)


async def test_a_defect_of_ours_costs_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(ChatSerializer, "_whole_choice", broken)
    async with start(admin_key=ADMIN_KEY) as running:
        await set_price(running)
        answer = await running.chat()
        assert answer.status_code == 500
        assert (await costs(running, answer))[:3] == ("failed", 0, 0)
