"""Events of responses in the background, with OpenAI's official client: left, and read again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.responses import ResponseStreamEvent
from support.running_gateway import Running, Start, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for

from pagoda_gateway.responses import endpoint
from pagoda_gateway.responses.endpoint import ResponsesEndpoint
from pagoda_gateway.responses.event_log import EventLog
from pagoda_gateway.sequences.generation import Generation
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ASKED: dict[str, Any] = {
    "model": "tiny", "input": "hello", "max_output_tokens": 8, "background": True, "stream": True,
}  # fmt: skip
Events = list[ResponseStreamEvent]


async def ended(running: Running) -> None:
    assert await running.gateway.admission.drain(30)


async def begun(client: openai.AsyncOpenAI, running: Running) -> tuple[str, Events]:
    """Ask, read some of three tokens' text, and go away."""
    events = []
    async with await client.responses.create(**ASKED) as stream:
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                break
    await running.tokens_arrived(3)
    assert [event.type for event in events[:3]] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    assert events[0].response.status == "queued"
    return events[0].response.id, events


async def opened(
    client: openai.AsyncOpenAI, name: str, after: int | None = None
) -> openai.AsyncStream[ResponseStreamEvent]:
    """Return a stream that the gateway has begun to answer."""
    options = {} if after is None else {"starting_after": after}
    return await client.responses.retrieve(name, stream=True, **options)


async def all_of(stream: openai.AsyncStream[ResponseStreamEvent]) -> Events:
    async with stream:  # or its generators are left to whichever thread collects them
        return [event async for event in stream]


async def again(client: openai.AsyncOpenAI, name: str, after: int | None = None) -> Events:
    return await all_of(await opened(client, name, after))


def text_of(events: Events) -> str:
    return "".join(e.delta for e in events if e.type == "response.output_text.delta")


def are_whole(events: Events) -> bool:
    return [event.sequence_number for event in events] == list(range(len(events)))


async def test_who_left_reads_on_where_he_was_while_it_runs_and_afterwards(
    start: Start, bus: Any
) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker) as running, running.sdk() as client:
        name, first = await begun(client, running)
        reading = await opened(client, name, first[-1].sequence_number)
        other = await opened(client, name)
        during = await client.responses.retrieve(name)
        worker.open_gate()
        rest, whole = await all_of(reading), await all_of(other)
        await ended(running)
        afterwards = await again(client, name)
        late = await again(client, name, first[-1].sequence_number)
        past = await again(client, name, whole[-1].sequence_number)
        found = await client.responses.retrieve(name)
        receipt = await running.http.get(f"/v1/receipts/{name.removeprefix('resp_')}")
    assert during.status == "in_progress"
    assert [*first, *rest] == whole == afterwards
    assert late == rest
    assert past == []
    assert are_whole(whole)
    assert whole[-1].type == "response.incomplete"
    assert whole[-1].response == found
    assert text_of(whole) == found.output_text
    assert len(found.output_text) == 8
    assert (receipt.json()["outcome"], receipt.json()["output_tokens"]) == ("finished", 8)


async def test_a_failure_is_the_last_event_before_a_token_and_after_some(
    start: Start, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker, max_attempts=1) as running, running.sdk() as client:
        with monkeypatch.context() as patch:

            def run(*_: Any) -> None:
                raise RuntimeError("a defect")

            patch.setattr(Generation, "run", run)
            stream = await client.responses.create(**ASKED)
            at_once = [event async for event in stream]
        name, first = await begun(client, running)
        reading = await opened(client, name, first[-1].sequence_number)
        worker.fail("broken")
        rest = await all_of(reading)
        await ended(running)
        for events in (at_once, [*first, *rest]):
            assert are_whole(events)
            assert events[-1].type == "response.failed"
            assert events[-1].response.status == "failed"
            found = await again(client, events[0].response.id)
            assert [e.type for e in found] == [e.type for e in events]
            assert are_whole(found)


@pytest.mark.parametrize("way", ["cancel", "delete"])
async def test_ending_it_ends_its_streams(start: Start, bus: Any, way: str) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker) as running, running.sdk() as client:
        name, first = await begun(client, running)
        reading = await opened(client, name, first[-1].sequence_number)
        await getattr(client.responses, way)(name)
        rest = await all_of(reading)
        await ended(running)
        if way == "cancel":
            assert await again(client, name) == []
        else:
            with pytest.raises(openai.NotFoundError):
                await again(client, name)
    assert not [event for event in rest if event.type.startswith("response.fail")]


async def test_events_that_there_is_no_room_for_cost_no_response(
    start: Start, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many of them to be kept, however they are packed."""
    too_large = {"first": 0, "data": "x" * 30_000}
    monkeypatch.setattr(EventLog, "packed", too_large)
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker, response_store_bytes=20_000) as running, running.sdk() as client:
        name, first = await begun(client, running)
        reading = await opened(client, name, first[-1].sequence_number)
        worker.open_gate()
        rest = await all_of(reading)
        await ended(running)
        found = await client.responses.retrieve(name)
        async with asyncio.timeout(60):  # until its task has ended, too, all are there
            while len(read := await again(client, name, 3)) > 1:
                pass
    (last,) = read
    assert rest[-1].type == last.type == "response.incomplete"
    assert rest[-1].response == last.response == found
    assert last.sequence_number == 4


@pytest.mark.parametrize(
    ("made", "query", "param"),
    [
        ({"stream": False}, "stream=true", "stream"),
        ({"stream": True, "background": False}, "stream=true", "stream"),
        ({}, "starting_after=3", "starting_after"),
        ({}, "stream=true&starting_after=-1", "starting_after"),
    ],
)
async def test_what_has_no_events_is_refused(
    running: Running, made: dict[str, Any], query: str, param: str
) -> None:
    async with running.sdk() as client:
        answer = await client.responses.create(**{**ASKED, **made})
        if isinstance(answer, openai.AsyncStream):
            *_, last = [event async for event in answer]
            answer = last.response
        await ended(running)
        refused = await running.http.get(f"/v1/responses/{answer.id}?{query}")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


@pytest_asyncio.fixture(loop_scope="module")
async def replicas(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Running]]:
    """Two gateways of one database, each with a worker; any worker may get any request."""
    monkeypatch.setattr(endpoint, "WATCH_SECONDS", 0.05)
    with nats_server(tmp_path) as nats:
        common = settings_for(nats, home=tmp_path)
        async with Bus.connect(common, name="workers") as bus, AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(
                    running_gateway(common, bus, model_folder, ScriptedWorker(bus, gate_index=3))
                )
                for _ in range(2)
            ]


async def test_another_replica_has_them_when_it_has_ended(
    replicas: list[Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = replicas
    asked = asyncio.Event()
    find = ResponsesEndpoint.find

    async def noted(self: ResponsesEndpoint, tenant: str, name: str) -> dict[str, Any]:
        if self is second.gateway.responses:
            asked.set()
        return await find(self, tenant, name)

    monkeypatch.setattr(ResponsesEndpoint, "find", noted)
    async with first.sdk() as at_first, second.sdk() as at_second:
        name, before = await begun(at_first, first)
        reading = asyncio.create_task(again(at_second, name, before[-1].sequence_number))
        await asked.wait()
        assert not reading.done()
        for running in replicas:
            running.worker.open_gate()
        whole = await again(at_first, name)
        rest = await reading
        await ended(first)
        assert await again(at_second, name) == whole
    assert [*before, *rest] == whole
    assert whole[-1].type == "response.incomplete"
