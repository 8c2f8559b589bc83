"""Conversations, with OpenAI's official client: kept, gone on with, added to."""

import asyncio
from typing import Any

import openai
import pytest
import sqlalchemy as sa
from integration.gateway.test_batches import content, create, until
from support.batch_files import answers, jsonl
from support.running_gateway import Running, Start
from support.scripted_worker import ScriptedWorker, tiny_card

from pagoda_gateway.batches.batch_store import LeaseLostError
from pagoda_gateway.batches.tables import BATCHES
from pagoda_gateway.responses import conversations

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ASKED: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 4}
SAID: dict[str, Any] = {"type": "message", "role": "user", "content": "before"}
ELSEWHERE = ("conv_none", "resp_none", "x\0", "é")


async def listed(client: openai.AsyncOpenAI, name: str) -> list[Any]:
    page = await client.conversations.items.list(name, order="asc", limit=100)
    return [(item.type, getattr(item, "role", None)) for item in page.data]


async def test_a_conversation_is_kept_changed_and_deleted(running: Running) -> None:
    async with running.sdk() as client:
        made = await client.conversations.create(metadata={"topic": "a"}, items=[SAID])
        assert made.id.startswith("conv_")
        found = await client.conversations.retrieve(made.id)
        changed = await client.conversations.update(made.id, metadata={"topic": "b"})
        again = await client.conversations.retrieve(made.id)
        empty = await client.conversations.create()
        assert (await client.conversations.items.list(empty.id)).data == []
        deleted = await client.conversations.delete(made.id)
        with pytest.raises(openai.NotFoundError, match="no conversation"):
            await client.conversations.retrieve(made.id)
    assert found == made
    assert (found.metadata, changed.metadata) == ({"topic": "a"}, {"topic": "b"})
    assert again == changed
    assert (deleted.id, deleted.deleted) == (made.id, True)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_line_that_runs_again_takes_its_turn_once(
    running: Running, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """As where a gateway was killed after it kept a response and before the line's answer."""
    batches, prompts, lost = running.gateway.batches, list[str](), asyncio.Event()

    async def lose(batch: sa.RowMapping, *_: Any, **__: Any) -> str:
        prompts.append(await running.prompt_text())
        lost.set()
        raise LeaseLostError(batch["batch_id"])

    def end_lease(connection: sa.Connection) -> None:
        connection.execute(sa.update(BATCHES).values(lease_unix_seconds=0.0))

    async with running.sdk() as client:
        made = await client.conversations.create(items=[SAID])
        sent = [{"role": "user", "content": "hello", "id": "msg_mine"}]
        body = {**ASKED, "input": sent, "temperature": 0}
        body |= {"conversation": made.id, "store": is_stored}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
        with monkeypatch.context() as patches:
            patches.setattr(batches, "record", lose)
            batch = await create(client, jsonl(line), "/v1/responses")
            await asyncio.wait_for(lost.wait(), 60)
        before = await client.conversations.items.list(made.id)
        await running.gateway.ledger.database.call(end_lease)
        batches.change.set()
        batch = await until(client, batch)
        (answer,) = answers(await content(client, batch.output_file_id))
        after = await client.conversations.items.list(made.id)
        assert await running.prompt_text() == prompts[0]
        said = {"type": "item_reference", "id": answer["response"]["body"]["output"][0]["id"]}
        if is_stored:
            await client.responses.create(**{**ASKED, "input": [said, SAID]})
    assert answer["response"]["status_code"] == 200
    assert len(before.data) == 3
    assert after.data == before.data


async def test_responses_go_on_with_it_and_add_to_it(running: Running) -> None:
    async with running.sdk() as client:
        made = await client.conversations.create(items=[SAID])
        first = await client.responses.create(**ASKED, conversation=made.id)
        assert "<|user|>before<|end|><|user|>hello<|end|>" in await running.prompt_text()
        assert await listed(client, made.id) == [
            ("message", "user"), ("message", "user"), ("message", "assistant"),
        ]  # fmt: skip
        stream = await client.responses.create(
            **{**ASKED, "input": "more"}, conversation={"id": made.id}, stream=True, store=False
        )
        *_, last = [event async for event in stream]
        prompt = await running.prompt_text()
        items = (await client.conversations.items.list(made.id, order="asc")).data
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(last.response.id)
    assert first.conversation is not None
    assert first.conversation.id == last.response.conversation.id == made.id
    assert prompt.index("before") < prompt.index("hello") < prompt.index("more")
    assert f"{first.output_text}<|end|><|user|>more" in prompt
    assert len({item.id for item in items}) == len(items) == 5
    assert items[2].content[0].text == first.output_text
    assert items[4].content[0].text == last.response.output_text


async def test_items_are_added_listed_found_and_deleted(running: Running) -> None:
    async with running.sdk() as client:
        made = await client.conversations.create()
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
        added = await client.conversations.items.create(
            made.id, items=[SAID, call, output, {**SAID, "id": "mine"}]
        )
        newest = await client.conversations.items.list(made.id, limit=2)
        older = await client.conversations.items.list(made.id, limit=2, after=newest.last_id)
        found = await client.conversations.items.retrieve("mine", conversation_id=made.id)
        left = await client.conversations.items.delete("mine", conversation_id=made.id)
        for ask in (client.conversations.items.retrieve, client.conversations.items.delete):
            with pytest.raises(openai.NotFoundError, match="no item 'mine'"):
                await ask("mine", conversation_id=made.id)
        kinds = [kind for kind, _ in await listed(client, made.id)]
    assert [item.type for item in added.data] == [
        "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert [item.id for item in newest.data + older.data] == [i.id for i in added.data[::-1]]
    assert (newest.has_more, older.has_more) == (True, False)
    assert (found.id, left.id) == ("mine", made.id)
    assert kinds == ["message", "function_call", "function_call_output"]


async def test_one_in_the_background_adds_at_its_end_unless_it_is_cancelled(
    start: Start, bus: Any
) -> None:
    worker = ScriptedWorker(bus, gate_index=2)
    async with start(worker) as running, running.sdk() as client:
        made = await client.conversations.create()
        behind = {**ASKED, "conversation": made.id, "background": True}
        first = await client.responses.create(**behind)
        await running.tokens_arrived(2)
        await client.responses.cancel(first.id)
        assert await running.gateway.admission.drain(30)
        assert await listed(client, made.id) == []
        second = await client.responses.create(**behind)
        await running.tokens_arrived(2)
        assert await listed(client, made.id) == []
        worker.open_gate()
        assert await running.gateway.admission.drain(30)
        assert (await client.responses.retrieve(second.id)).status == "incomplete"
        assert len(await listed(client, made.id)) == 2


async def test_an_answer_whose_conversation_was_deleted_meanwhile_comes_all_the_same(
    start: Start, bus: Any
) -> None:
    worker = ScriptedWorker(bus, gate_index=2)
    async with start(worker) as running, running.sdk() as client:
        made = await client.conversations.create()
        stream = await client.responses.create(**ASKED, conversation=made.id, stream=True)
        await running.tokens_arrived(2)
        await client.conversations.delete(made.id)
        worker.open_gate()
        *_, last = [event async for event in stream]
        with pytest.raises(openai.NotFoundError, match="no conversation"):
            await client.responses.create(**ASKED, conversation=made.id)
    assert last.type == "response.incomplete"
    assert last.response.store


@pytest.mark.parametrize("name", ELSEWHERE)
async def test_what_is_no_conversation_is_not_found(running: Running, name: str) -> None:
    async with running.sdk() as client:
        response = await client.responses.create(**ASKED)
        made = await client.conversations.create()
        for other in (name, response.id):
            with pytest.raises(openai.NotFoundError, match="no conversation"):
                await client.responses.create(**ASKED, conversation=other)
        for ask in (client.conversations.retrieve, client.conversations.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(response.id)
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        assert await client.conversations.retrieve(made.id) == made


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": [{"type": "odd"}]}, "items[0]"),
        ("", {"items": [{**SAID, "content": 3}]}, "items[0].content"),
        ("", {"items": [SAID] * 21}, "items"),
        ("", {"items": ["x"]}, "items[0]"),
        ("", {"metadata": {"a": 1}}, "metadata.a"),
        ("/{id}", {"metadata": {"a": "x" * 600}}, "metadata.a"),
        ("/{id}/items", {"items": []}, "items"),
        ("/{id}/items", {}, "items"),
        ("/{id}/items", {"items": [SAID, {"type": "item_reference", "id": "x"}]}, "items[1]"),
    ],
)
async def test_what_is_wrong_is_named(
    running: Running, path: str, body: dict[str, Any], param: str
) -> None:
    made = (await running.http.post("/v1/conversations", json={})).json()
    answer = await running.http.post(f"/v1/conversations{path.format(**made)}", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    items = await running.http.get(f"/v1/conversations/{made['id']}/items")
    assert items.json()["data"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"conversation": 3},
        {"conversation": {}},
        {"conversation": {"id": 3}},
        {"conversation": "conv_x", "previous_response_id": "resp_x"},
    ],
)
async def test_a_wrong_conversation_is_named(running: Running, fields: dict[str, Any]) -> None:
    answer = await running.http.post("/v1/responses", json={**ASKED, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "conversation"


async def test_it_has_so_many_items_at_most(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MAX_KEPT_ITEMS", 3)
    async with running.sdk() as client:
        made = await client.conversations.create(items=[SAID, SAID])
        with pytest.raises(openai.BadRequestError, match="limit is 3"):
            await client.conversations.items.create(made.id, items=[SAID, SAID])
        answer = await client.responses.create(**ASKED, conversation=made.id)
        assert len(await listed(client, made.id)) == 2
    assert not answer.model_dump()["store"]
    assert len(answer.output_text) == 4


async def test_one_in_the_background_that_it_has_no_room_for_says_so_whenever_it_is_read(
    start: Start, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MAX_KEPT_ITEMS", 3)
    worker = ScriptedWorker(bus, gate_index=2)
    async with start(worker) as running, running.sdk() as client:
        made = await client.conversations.create()
        asked = {**ASKED, "conversation": made.id, "background": True}
        async with await client.responses.create(**asked, stream=True) as stream:
            await running.tokens_arrived(2)
            await client.conversations.items.create(made.id, items=[SAID, SAID])
            worker.open_gate()
            events = [event async for event in stream]
        assert await running.gateway.admission.drain(30)
        response = events[-1].response
        found = await client.responses.retrieve(response.id)
        again = [e async for e in await client.responses.retrieve(response.id, stream=True)]
        assert len(await listed(client, made.id)) == 2
    assert not response.model_dump()["store"]
    assert response == found == again[-1].response
    assert [event.sequence_number for event in again] == list(range(len(events)))


async def test_it_takes_so_many_bytes_at_most(start: Start, bus: Any) -> None:
    large = {**SAID, "content": "x" * 1400}
    worker = ScriptedWorker(bus, card=tiny_card(max_model_len=4096))
    async with start(worker, max_body_bytes=2000) as running, running.sdk() as client:
        made = await client.conversations.create(items=[large])
        with pytest.raises(openai.BadRequestError, match=r"limit is 2000, .*MAX_BODY_BYTES"):
            await client.conversations.items.create(made.id, items=[large])
        again = {**ASKED, "input": "x" * 500}
        answer = await client.responses.create(**again, conversation=made.id)
        assert len(await listed(client, made.id)) == 1
        small = await client.conversations.items.create(made.id, items=[SAID])
        assert len(small.data) == 1
    assert not answer.model_dump()["store"]
    assert len(answer.output_text) == 4


async def test_what_a_response_goes_on_with_takes_so_many_bytes_at_most(
    start: Start, bus: Any
) -> None:
    worker = ScriptedWorker(bus, card=tiny_card(max_model_len=4096))
    long = {**ASKED, "input": "x" * 1200}
    async with start(worker, max_body_bytes=2000) as running, running.sdk() as client:
        first = await client.responses.create(**long)
        second = await client.responses.create(**long, previous_response_id=first.id)
        num_asked = len(worker.requests)
        with pytest.raises(openai.BadRequestError, match=r"would take .* the limit is 2000"):
            await client.responses.create(**long, previous_response_id=first.id, background=True)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)
    assert first.model_dump()["store"]
    assert not second.model_dump()["store"]
    assert len(second.output_text) == 4
    assert len(worker.requests) == num_asked == 2


async def test_without_room_none_is_kept(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus), response_store_bytes=900) as running:
        answer = await running.http.post("/v1/conversations", json={"items": [SAID] * 9})
        assert answer.status_code == 400
        assert "PAGODA_GATEWAY_RESPONSE_STORE_BYTES" in answer.json()["error"]["message"]
        made = (await running.http.post("/v1/conversations", json={})).json()
        path = f"/v1/conversations/{made['id']}/items"
        answer = await running.http.post(path, json={"items": [SAID] * 9})
        assert answer.status_code == 400
        assert "PAGODA_GATEWAY_RESPONSE_STORE_BYTES" in answer.json()["error"]["message"]
        assert (await running.http.get(path)).json()["data"] == []
