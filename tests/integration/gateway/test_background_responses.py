"""Responses in the background, with OpenAI's official client: found, cancelled, billed."""

import asyncio
import time
from functools import partial
from typing import Any

import openai
import pytest
from support.running_gateway import Running, Start
from support.scripted_worker import ScriptedWorker

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.errors import UnavailableError
from pagoda_gateway.http.generation.prefix_watch import PrefixWatch
from pagoda_gateway.response_store.database_store import DatabaseResponseStore
from pagoda_gateway.responses import endpoint
from pagoda_gateway.sequences.generation import Generation

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ASKED: dict[str, Any] = {
    "model": "tiny", "input": "hello", "max_output_tokens": 8, "background": True,
}  # fmt: skip


async def ended(running: Running) -> None:
    """Wait until no request holds a slot: what was started has been written and settled."""
    assert await running.gateway.admission.drain(30)


async def test_it_is_queued_then_in_progress_then_found(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker) as running, running.sdk() as client:
        first = await client.responses.create(**ASKED)
        with pytest.raises(openai.BadRequestError, match="has not ended"):
            await client.responses.create(**ASKED, previous_response_id=first.id)
        await running.tokens_arrived(3)
        during = await client.responses.retrieve(first.id)
        worker.open_gate()
        await ended(running)
        found = await client.responses.retrieve(first.id)
        whole = await client.responses.create(**{**ASKED, "background": False}, temperature=0)
        more = await client.responses.create(
            **{**ASKED, "background": False}, previous_response_id=first.id
        )
        receipt = await running.http.get(f"/v1/receipts/{first.id.removeprefix('resp_')}")
    assert (first.status, first.background, first.output) == ("queued", True, [])
    assert (during.status, during.output_text) == ("in_progress", "")
    assert (found.id, found.status, found.background) == (first.id, "incomplete", True)
    assert len(found.output_text) == len(whole.output_text) == 8
    assert found.usage is not None
    assert found.usage.output_tokens == 8
    assert more.previous_response_id == first.id
    assert (receipt.json()["outcome"], receipt.json()["output_tokens"]) == ("finished", 8)


async def test_cancelling_ends_it_at_once(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker) as running, running.sdk() as client:
        first = await client.responses.create(**ASKED)
        await running.tokens_arrived(3)
        cancelled = await client.responses.cancel(first.id)
        again = await client.responses.cancel(first.id)
        await ended(running)
        await worker.wait_until(lambda: worker.num_running == 0)
        found = await client.responses.retrieve(first.id)
        receipt = await running.http.get(f"/v1/receipts/{first.id.removeprefix('resp_')}")
    assert cancelled.status == again.status == found.status == "cancelled"
    assert [cancel.request_id for cancel in worker.cancels] == [first.id.removeprefix("resp_")]
    assert receipt.json()["outcome"] == "disconnected"


async def test_one_that_has_ended_is_not_cancelled_any_more(running: Running) -> None:
    async with running.sdk() as client:
        first = await client.responses.create(**ASKED)
        await ended(running)
        assert (await client.responses.cancel(first.id)).status == "incomplete"


async def test_deleting_ends_it_and_it_does_not_come_back(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker) as running, running.sdk() as client:
        first = await client.responses.create(**ASKED)
        await running.tokens_arrived(3)
        await client.responses.delete(first.id)
        await ended(running)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)


async def test_a_failure_is_found(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker, max_attempts=1) as running, running.sdk() as client:
        first = await client.responses.create(**ASKED)
        await running.tokens_arrived(3)
        worker.fail("broken")
        await ended(running)
        found = await client.responses.retrieve(first.id)
    assert found.status == "failed"
    assert found.error is not None
    assert found.error.code == "server_error"


async def test_a_defect_is_found_as_a_failure(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any) -> None:
        raise RuntimeError("a defect")

    async with running.sdk() as client:
        with monkeypatch.context() as patch:
            patch.setattr(Generation, "run", run)
            first = await client.responses.create(**ASKED)
            await ended(running)
        found = await client.responses.retrieve(first.id)
    assert found.status == "failed"


async def test_what_cannot_be_found_is_refused(running: Running) -> None:
    answer = await running.http.post("/v1/responses", json={**ASKED, "store": False})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "background"
    assert "store" in answer.json()["error"]["message"]


async def test_what_runs_is_found_however_much_is_kept_meanwhile(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker, response_store_bytes=20_000) as running, running.sdk() as client:
        first = await client.responses.create(**ASKED)
        await running.tokens_arrived(3)
        worker.open_gate()
        await ended(running)
        worker.gate_index = 3
        second = await client.responses.create(**ASKED)
        await running.tokens_arrived(3)
        text = "x" * 400
        for _ in range(8):
            stored = {**ASKED, "background": False, "user": 8 * text, "max_output_tokens": 1}
            await running.http.post("/v1/responses", json=stored)
        assert (await client.responses.retrieve(second.id)).status == "in_progress"
        assert (await client.responses.cancel(second.id)).status == "cancelled"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)


async def test_without_room_to_keep_it_nothing_runs(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus)
    async with start(worker, response_store_bytes=100) as running:
        answer = await running.http.post("/v1/responses", json=ASKED)
        await ended(running)
    assert answer.status_code == 503
    assert "PAGODA_GATEWAY_RESPONSE_STORE_BYTES" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"]


async def test_cancelling_what_was_just_kept_changes_nothing(
    start: Start, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, settled = asyncio.Event(), asyncio.Event()

    async def late(*_: Any) -> None:
        kept.set()
        await settled.wait()

    monkeypatch.setattr(PrefixWatch, "settle", late)
    async with start(ScriptedWorker(bus)) as running, running.sdk() as client:
        first = await client.responses.create(**ASKED)
        await kept.wait()
        cancelled = await client.responses.cancel(first.id)
        settled.set()
        await ended(running)
        found = await client.responses.retrieve(first.id)
    assert cancelled.status == found.status == "incomplete"


async def account(running: Running, request_id: str, **fields: Any) -> None:
    """Put a request of another gateway into the ledger, and its end if `outcome` says one."""
    opened = {
        "request_id": request_id, "object_id": f"resp_{request_id}", "tenant": "default",
        "model": "tiny", "endpoint": "responses", "gateway_id": "gateway-gone", "num_choices": 1,
        "opened_unix_seconds": 1000.0, **fields,
    }  # fmt: skip
    outcome, closed = opened.pop("outcome", ""), opened.pop("closed_unix_seconds", 1001.0)
    records = [UsageRecord(open=UsageOpen(**opened))]
    if outcome:
        close = UsageClose(request_id=request_id, outcome=outcome, closed_unix_seconds=closed)
        records.append(UsageRecord(close=close))
    await running.gateway.ledger.apply(records)


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        ("", "in_progress", ""),
        ("reconciled", "failed", "is billed"),
        ("lost", "failed", "nothing of it is billed"),
        ("failed", "failed", "another replica"),
    ],
)
async def test_what_another_gateway_had_is_found_as_its_account_tells(
    running: Running, outcome: str, status: str, said: str
) -> None:
    await account(running, f"gone{outcome}", outcome=outcome)
    async with running.sdk() as client:
        found = await client.responses.retrieve(f"resp_gone{outcome}")
    assert (found.status, found.model, found.created_at) == (status, "tiny", 1000)
    assert found.output == []
    assert (found.error is None) is (status == "in_progress")
    assert said in (found.error.message if found.error else "")


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        ("", "in_progress", ""),
        ("reconciled", "failed", "is billed"),
        ("lost", "failed", "nothing of it is billed"),
        ("finished", "failed", "is billed"),
    ],
)
async def test_what_another_gateway_runs_is_found_with_what_was_asked(
    running: Running, outcome: str, status: str, said: str
) -> None:
    async with running.sdk() as client:
        asked = {**ASKED, "metadata": {"for": "a test"}}
        first = await client.responses.create(**asked)
        await ended(running)
        response_id = f"resp_runs{outcome}"
        response = first.model_dump() | {"id": response_id}
        gone = DatabaseResponseStore(
            running.gateway.ledger.database, running.gateway.large_bodies,
            gateway_id="gateway-gone", max_bytes=1 << 20, keep_seconds=60, run_seconds=60,
        )  # fmt: skip
        value: dict[str, Any] = {"response": response, "items": []}
        assert await gone.put("default", response_id, value, is_running=True)
        before = await client.responses.retrieve(response_id)
        now = time.time()
        await account(running, f"runs{outcome}", outcome=outcome, closed_unix_seconds=now)
        found = await client.responses.retrieve(response_id)
        cancelled = await client.responses.cancel(response_id)
        assert cancelled.status == (status if outcome else "cancelled")
        assert cancelled.error == found.error
        follower = await client.responses.create(**ASKED, previous_response_id=response_id)
        assert follower.status == "queued"
        await ended(running)
        if outcome:  # its gateway comes back after all
            value["response"]["status"] = "completed"
            assert await gone.end("default", response_id, lambda _: value)
            assert (await client.responses.retrieve(response_id)).status == "completed"
    assert before.status == "in_progress"
    assert (found.status, found.metadata) == (status, {"for": "a test"})
    assert (found.error is None) is (status == "in_progress")
    assert said in (found.error.message if found.error else "")


@pytest.mark.parametrize("response_store_bytes", [1 << 20, 4000])
async def test_what_a_dead_gateway_has_left_is_ended_though_nobody_asks(
    start: Start, bus: Any, monkeypatch: pytest.MonkeyPatch, response_store_bytes: int
) -> None:
    """It is gone where it would take more than there is room for now."""
    monkeypatch.setattr(endpoint, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(endpoint, "SWEEP_SECONDS", 0.0)
    has_room = response_store_bytes > 4000
    async with (
        start(ScriptedWorker(bus), response_store_bytes=response_store_bytes) as running,
        running.sdk() as client,
    ):
        first = await client.responses.create(**ASKED)
        await ended(running)
        gone = DatabaseResponseStore(
            running.gateway.ledger.database, running.gateway.large_bodies,
            gateway_id="gateway-dead", max_bytes=1 << 20, keep_seconds=60, run_seconds=60,
        )  # fmt: skip
        items = [{"type": "message", "role": "user", "content": "x" * 9000}]
        value = {"response": first.model_dump() | {"id": "resp_left"}, "items": items}
        assert await gone.put("default", "resp_left", value, is_running=True)
        await account(running, "left", outcome="reconciled", gateway_id="gateway-dead")
        left = gone.running if has_room else partial(gone.get, "default", "resp_left")
        async with asyncio.timeout(30):
            while await left():  # noqa: ASYNC110 - a gateway does it, and tells nobody
                await asyncio.sleep(0.01)
        found = await client.responses.retrieve("resp_left")
    assert found.status == "failed"  # as its account says where nothing is kept


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": "finished"},
        {"outcome": "disconnected"},
        {"tenant": "other"},
        {"endpoint": "chat.completions"},
        {"gateway_id": ""},
    ],
)
async def test_what_no_account_can_tell_is_not_found(
    running: Running, fields: dict[str, Any]
) -> None:
    if "gateway_id" in fields:  # our own: what is kept is all that there is
        fields = {"gateway_id": running.gateway.gateway_id}
    name = f"none{'-'.join(fields)}{'-'.join(fields.values())}"[:60]
    await account(running, name, **fields)
    async with running.sdk() as client:
        if "outcome" in fields:
            with pytest.raises(openai.NotFoundError, match=rf"\({fields['outcome']}\).*receipt"):
                await client.responses.retrieve(f"resp_{name}")
        for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(f"resp_{name}")


async def test_one_that_its_conversation_cannot_have_is_kept_and_says_so(
    start: Start, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database does not answer once: the turn is not in the conversation, nor half of it."""
    real = DatabaseResponseStore.end
    calls = []

    async def failing_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise UnavailableError("not now")
        return await real(*arguments)

    monkeypatch.setattr(DatabaseResponseStore, "end", failing_once)
    async with start(ScriptedWorker(bus)) as running, running.sdk() as client:
        conversation = await client.conversations.create()
        asked: Any = {**ASKED, "conversation": conversation.id}
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        await ended(running)
        last = events[-1].response
        found = await client.responses.retrieve(last.id)
        again = [e async for e in await client.responses.retrieve(last.id, stream=True)]
        items = await client.conversations.items.list(conversation.id)
    assert found.output_text == last.output_text != ""
    assert (found.status, found.store, last.store) == ("incomplete", False, False)  # type: ignore[attr-defined]
    assert again == events
    assert items.data == []
