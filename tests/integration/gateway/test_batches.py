"""Files and batches by the official client, against a running gateway."""

import asyncio

import jsonschema
import openai
import pytest
from openai.types import Batch
from support.batch_files import answers, batch_line, jsonl, numbered
from support.running_gateway import CHAT, Running, Start
from support.scripted_worker import ScriptedWorker

from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

ENDED = ("completed", "failed", "expired", "cancelled")


async def create(
    client: openai.AsyncOpenAI, data: bytes, endpoint: str = "/v1/completions", **values: object
) -> Batch:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **values
    )  # type: ignore[call-overload]


async def until(client: openai.AsyncOpenAI, batch: Batch, *statuses: str) -> Batch:
    async with asyncio.timeout(60):
        while batch.status not in (statuses or ENDED):
            await asyncio.sleep(0.02)  # another's work: there is no event to wait on
            batch = await client.batches.retrieve(batch.id)
            counts = batch.request_counts
            assert counts is not None
            assert counts.completed + counts.failed <= max(counts.total, 0)
    return batch


async def content(client: openai.AsyncOpenAI, file_id: str | None) -> bytes:
    assert file_id is not None
    return (await client.files.content(file_id)).content


async def test_a_batch_answers_every_line_in_order(running: Running) -> None:
    async with running.sdk() as client:
        batch = await create(client, numbered(25, temperature=0), metadata={"job": "nightly"})
        assert batch.status == "validating"
        assert batch.usage is not None
        assert batch.usage.total_tokens == 0
        ended = await until(client, batch)
        assert ended.status == "completed"
        assert ended.request_counts is not None
        assert ended.request_counts.model_dump() == {"total": 25, "completed": 25, "failed": 0}
        assert (ended.metadata, ended.model) == ({"job": "nightly"}, "tiny")
        assert (ended.error_file_id, ended.errors) == (None, None)
        found = answers(await content(client, ended.output_file_id))
        assert [line["custom_id"] for line in found] == [f"line-{i}" for i in range(25)]
        taken = [line["response"]["body"]["usage"] for line in found]
        assert ended.usage is not None
        assert ended.usage.input_tokens == sum(usage["prompt_tokens"] for usage in taken)
        assert (
            ended.usage.output_tokens == sum(usage["completion_tokens"] for usage in taken) == 100
        )
        assert ended.usage.total_tokens == ended.usage.input_tokens + 100
        first = found[0]["response"]
        direct = await client.completions.create(
            model="tiny", prompt="line-0", max_tokens=4, temperature=0
        )
        assert first["status_code"] == 200
        assert first["body"]["choices"][0]["text"] == direct.choices[0].text
        receipt = (await running.http.get(f"/v1/receipts/{first['request_id']}")).json()
        assert (receipt["service_tier"], receipt["output_tokens"]) == ("batch", 4)
        listed = [item async for item in client.batches.list(limit=1)]
        assert batch.id in [item.id for item in listed]


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/chat/completions", {"messages": CHAT["messages"]}),
        ("/v1/embeddings", {"input": "hello"}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
async def test_every_endpoint(running: Running, url: str, body: dict[str, object]) -> None:
    line = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "tiny", **body}}
    async with running.sdk() as client:
        ended = await until(client, await create(client, jsonl(line), url))
        (answer,) = answers(await content(client, ended.output_file_id))
    assert answer["response"]["status_code"] == 200
    body = answer["response"]["body"]
    assert body["object"] in ("chat.completion", "list", "response")
    assert ended.usage is not None
    assert ended.usage.total_tokens == body["usage"]["total_tokens"] > 0


async def test_bad_requests_go_to_the_error_file(running: Running) -> None:
    bad = batch_line("bad", temperature=-1)
    async with running.sdk() as client:
        batch = await create(client, jsonl(batch_line("good"), bad, batch_line("fine")))
        ended = await until(client, batch)
        good = answers(await content(client, ended.output_file_id))
        (error,) = answers(await content(client, ended.error_file_id))
    assert ended.status == "completed"
    assert [line["custom_id"] for line in good] == ["good", "fine"]
    assert error["custom_id"] == "bad"
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["param"] == "temperature"


async def test_a_bad_file_fails_before_anything_runs(running: Running) -> None:
    lines = [
        batch_line("a"), batch_line("a"), batch_line("b", url="/v1/embeddings"),
        batch_line("c", model="gpt-9"),
    ]  # fmt: skip
    async with running.sdk() as client:
        ended = await until(client, await create(client, jsonl(*lines) + b"\n{nonsense\n"))
    assert ended.status == "failed"
    assert ended.errors is not None
    assert [(error.line, error.code) for error in ended.errors.data or []] == [
        (2, "duplicate_custom_id"), (3, "invalid_url"), (4, "model_not_found"),
        (6, "invalid_json_line"),
    ]  # fmt: skip
    assert not running.worker.requests


async def test_cancel_keeps_what_is_there(start: Start, bus: Bus) -> None:
    worker = ScriptedWorker(bus)
    async with start(worker, batch_concurrency=2) as running, running.sdk() as client:
        worker.token_at = lambda request, _index: 70
        held = b"".join((numbered(4), jsonl(batch_line("held", max_tokens=9)), numbered(0)))
        worker.gate_index = 6
        rest = jsonl(*(batch_line(f"later-{i}", max_tokens=9) for i in range(5)))
        batch = await create(client, held + rest)
        await worker.wait_until(lambda: worker.num_running == 2 and len(worker.requests) == 6)
        batch = await client.batches.cancel(batch.id)
        assert batch.status == "cancelling"
        document = (await running.http.get("/openapi.json")).json()
        schemas = {"components": document["components"]}
        jsonschema.validate(
            (await running.http.get(f"/v1/batches/{batch.id}")).json(),
            {"$ref": "#/components/schemas/BatchObject", **schemas},
        )
        worker.open_gate()
        ended = await until(client, batch)
        found = answers(await content(client, ended.output_file_id))
        errors = answers(await content(client, ended.error_file_id))
    assert ended.status == "cancelled"
    assert [line["custom_id"] for line in found] == [
        "line-0", "line-1", "line-2", "line-3", "held", "later-0",
    ]  # fmt: skip
    assert ended.request_counts is not None
    assert ended.request_counts.model_dump() == {"total": 10, "completed": 6, "failed": 4}
    assert [line["custom_id"] for line in errors] == [f"later-{i}" for i in range(1, 5)]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
