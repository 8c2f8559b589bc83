"""POST /v1/embeddings on a scripted worker."""

import asyncio
import base64
import struct
from typing import Any

import httpx
import pytest
from support.running_gateway import Running, Start, heard_of
from support.scripted_worker import EMBEDDING_SIZE, ScriptedWorker, embedding_of, running_worker

from pagoda.rpc.v1 import route_pb2
from pagoda_gateway.embeddings import serializer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MAX_ERROR = 1e-6


async def embed(running: Running, given: Any, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "input": given, **fields}
    return await running.http.post("/v1/embeddings", json=body)


def values_of(token_ids: list[int]) -> tuple[float, ...]:
    return struct.unpack(f"<{EMBEDDING_SIZE}f", embedding_of(token_ids))


async def test_each_input_has_its_embedding_in_order(running: Running) -> None:
    inputs = [[69, 70, 71], [72], [73, 74]]
    answer = (await embed(running, inputs)).json()
    assert answer["object"] == "list"
    assert answer["model"] == "tiny"
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
    for token_ids, entry in zip(inputs, answer["data"], strict=True):
        assert entry["object"] == "embedding"
        assert entry["embedding"] == pytest.approx(values_of(token_ids), abs=MAX_ERROR)


async def test_text_is_tokenised(running: Running) -> None:
    (entry,) = (await embed(running, "hello")).json()["data"]
    prompt = list(running.worker.requests[-1].prompt_token_ids)
    assert prompt
    assert entry["embedding"] == pytest.approx(values_of(prompt), abs=MAX_ERROR)
    await embed(running, "hello", truncate_prompt_tokens=1)
    assert list(running.worker.requests[-1].prompt_token_ids) == prompt[-1:]


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_many_come_in_parts(
    running: Running, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(serializer, "PART_NUMBERS", 3 * EMBEDDING_SIZE)
    inputs = [[70 + i] for i in range(10)]
    answer = await embed(running, inputs, encoding_format=form)
    assert "content-length" not in answer.headers
    body = answer.json()
    assert [entry["index"] for entry in body["data"]] == list(range(10))
    for token_ids, entry in zip(inputs, body["data"], strict=True):
        found = entry["embedding"]
        if form == "base64":
            found = struct.unpack(f"<{EMBEDDING_SIZE}f", base64.b64decode(found))
        assert found == pytest.approx(values_of(token_ids), abs=MAX_ERROR)
    assert body["usage"] == {"prompt_tokens": 10, "total_tokens": 10}


async def test_base64_has_the_same_numbers(running: Running) -> None:
    (entry,) = (await embed(running, [69, 70], encoding_format="base64")).json()["data"]
    assert base64.b64decode(entry["embedding"]) == embedding_of([69, 70])


async def test_fewer_dimensions_have_length_1(running: Running) -> None:
    (entry,) = (await embed(running, [69, 70], dimensions=2)).json()["data"]
    first, second = values_of([69, 70])[:2]
    length = (first**2 + second**2) ** 0.5
    assert entry["embedding"] == pytest.approx([first / length, second / length], abs=MAX_ERROR)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"dimensions": 5}, "dimensions", "must be 1 to 4"),
        ({"input": [69, 267]}, "input", "token id 267"),
        ({"input": [69] * 512}, "input", "'input' has 512"),
        ({"input": "a" * 100_000}, "input", "100000 characters"),
        ({"input": " a" * 600}, "input", "maximum context length is 512"),
    ],
)
async def test_what_the_model_cannot_serve_is_named(
    running: Running, fields: dict[str, Any], param: str, says: str
) -> None:
    answer = await embed(running, **{"given": fields.pop("input", "a"), **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


async def test_the_prompt_is_computed_where_it_is_asked_for(running: Running) -> None:
    running.router.answer = route_pb2.RouteResponse(
        status=route_pb2.ROUTE_STATUS_PLACED,
        decode_worker_id=running.worker.worker_id,
        prefill_worker_id="prefill-elsewhere",
        num_fetch_blocks=2,
    )
    await embed(running, "hello")
    request = running.worker.requests[-1]
    assert (request.plan.prefill_worker_id, request.plan.num_fetch_blocks) == ("", 0)
    assert (request.sampling.embed, request.sampling.max_tokens) == (True, 0)


async def test_the_account_has_input_tokens_only(running: Running) -> None:
    receipt = await running.receipt(await embed(running, [[69, 70], [71]]))
    assert receipt["endpoint"] == "embeddings"
    assert (receipt["prompt_tokens"], receipt["output_tokens"]) == (3, 0)
    assert receipt["finish_reasons"] == ["stop", "stop"]


async def test_a_long_list_is_worked_through_in_parts(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    inputs = [[5 + i, 6] for i in range(20)]
    async with start(worker, max_sequences=3) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(embed(running, inputs))
        await worker.wait_until(lambda: worker.num_running == 3)
        (generation,) = running.gateway.admission._generations
        assert sum(bool(sequence.worker_id) for sequence in generation.sequences) == 3
        assert len(worker.requests) == 3
        worker.open_gate()
        answer = (await asking).json()
        assert len(worker.requests) == 20
    for token_ids, entry in zip(inputs, answer["data"], strict=True):
        assert entry["embedding"] == pytest.approx(values_of(token_ids), abs=MAX_ERROR)


async def test_another_worker_computes_it_again(start: Start, bus: Any) -> None:
    first = ScriptedWorker(bus, gate_index=0)
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(embed(running, [69, 70]))
        await first.wait_until(lambda: bool(first.requests))
        async with running_worker(ScriptedWorker(bus)) as second:
            await heard_of(running.router.directory, second.worker_id)
            await first.kill()
            answer = await asking
        assert second.requests[0].attempt == 1
    (entry,) = answer.json()["data"]
    assert entry["embedding"] == pytest.approx(values_of([69, 70]), abs=MAX_ERROR)
    assert answer.json()["usage"]["total_tokens"] == 2


async def test_the_openai_client_reads_it(running: Running) -> None:
    """Unasked it sends encoding_format base64."""
    async with running.sdk() as client:
        answer = await client.embeddings.create(model="tiny", input=["a", "b"])
        asked = await client.embeddings.create(
            model="tiny", input=["a", "b"], encoding_format="float"
        )
    for one, other in zip(answer.data, asked.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=MAX_ERROR)
