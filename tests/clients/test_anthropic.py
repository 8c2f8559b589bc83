"""Anthropic's own client: batches of messages."""

import asyncio
import time

import pytest
from clients.shapes import QUESTION

anthropic = pytest.importorskip("anthropic")


@pytest.fixture
def requests(server):
    params = {
        "model": server.model,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    return [
        {"custom_id": "good", "params": params},
        {"custom_id": "bad", "params": {**params, "temperature": -1}},
    ]


def test_message_batches(server, requests):
    client = anthropic.Anthropic(base_url=server.url, api_key=server.api_key)
    batches = client.messages.batches
    batch = batches.create(requests=requests)
    while batches.retrieve(batch.id).processing_status != "ended":
        time.sleep(0.1)
    good, bad = batches.results(batch.id)
    assert (good.custom_id, good.result.type) == ("good", "succeeded")
    assert good.result.message.usage.output_tokens > 0
    assert (bad.custom_id, bad.result.type) == ("bad", "errored")
    assert bad.result.error.error.type == "invalid_request_error"
    assert batch.id in [listed.id for listed in batches.list(limit=1)]
    with pytest.raises(anthropic.BadRequestError):
        batches.cancel(batch.id)
    assert batches.delete(batch.id).id == batch.id
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve(batch.id)
    with pytest.raises(anthropic.BadRequestError, match="custom_id"):
        batches.create(requests=[requests[0]] * 2)


async def test_message_batches_of_the_asynchronous_client(server, requests):
    client = anthropic.AsyncAnthropic(base_url=server.url, api_key=server.api_key)
    batches = client.messages.batches
    many = [{**requests[0], "custom_id": str(number)} for number in range(200)]
    batch = await batches.create(requests=many)
    assert (await batches.cancel(batch.id)).processing_status in ("canceling", "ended")
    while (await batches.retrieve(batch.id)).processing_status != "ended":  # noqa: ASYNC110
        await asyncio.sleep(0.1)  # its work: there is no event to wait on
    results = [line async for line in await batches.results(batch.id)]
    assert [line.custom_id for line in results] == [str(number) for number in range(200)]
    assert results[-1].result.type == "canceled"
    assert (await batches.delete(batch.id)).type == "message_batch_deleted"
