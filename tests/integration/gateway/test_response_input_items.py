"""What a kept response answers, listed with OpenAI's official client."""

from typing import Any

import openai
import pytest
from support.running_gateway import Running

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ASKED: dict[str, Any] = {"model": "tiny", "max_output_tokens": 4}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "5"}


async def test_the_conversation_is_listed_page_by_page(running: Running) -> None:
    async with running.sdk() as client:
        first = await client.responses.create(**ASKED, input="hello", instructions="be brief")
        second = await client.responses.create(
            **ASKED,
            input=[{"role": "user", "content": "and?"}, CALL, OUTPUT],  # type: ignore[list-item]
            previous_response_id=first.id,
        )
        of_first = [item async for item in client.responses.input_items.list(first.id)]
        pages = client.responses.input_items.list(second.id, order="asc", limit=2)
        of_second = [item async for item in pages]
        newest = await client.responses.input_items.list(second.id, limit=1)
    assert [(item.type, item.role, item.content[0].text) for item in of_first] == [
        ("message", "user", "hello")
    ]
    assert [item.type for item in of_second] == [
        "message", "message", "message", "function_call", "function_call_output",
    ]  # fmt: skip
    assert of_second[0] == of_first[0]
    assert of_second[1] == first.output[0]
    assert of_second[2].content[0].text == "and?"
    assert (of_second[3].name, of_second[3].arguments) == ("f", "{}")
    assert (of_second[4].call_id, of_second[4].output) == ("c", "5")
    assert len({item.id for item in of_second}) == 5
    assert (newest.data, newest.has_more) == ([of_second[4]], True)


async def test_a_listed_id_continues_after_it(running: Running) -> None:
    async with running.sdk() as client:
        kept = await client.responses.create(**ASKED, input=[{"role": "user", "content": "a"}] * 3)
        every = (await client.responses.input_items.list(kept.id, order="asc")).data
        rest = await client.responses.input_items.list(kept.id, order="asc", after=every[0].id)
        assert rest.data == every[1:]
        with pytest.raises(openai.BadRequestError, match="none of these items"):
            await client.responses.input_items.list(kept.id, after="msg_other")


@pytest.mark.parametrize(
    ("query", "param", "named"),
    [("limit=0", "limit", "1"), ("limit=101", "limit", "100"), ("order=up", "order", "asc")],
)
async def test_bad_queries_are_named(running: Running, query: str, param: str, named: str) -> None:
    kept = (await running.http.post("/v1/responses", json={**ASKED, "input": "a"})).json()
    answer = await running.http.get(f"/v1/responses/{kept['id']}/input_items?{query}")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert named in error["message"]


async def test_only_what_is_kept_is_listed(running: Running) -> None:
    async with running.sdk() as client:
        private = await client.responses.create(**ASKED, input="a", store=False)
        for response_id in (private.id, "resp_x"):
            with pytest.raises(openai.NotFoundError, match="is kept"):
                await client.responses.input_items.list(response_id)


async def test_metadata_is_kept_with_a_response(running: Running) -> None:
    metadata = {"run": "7", "k" * 64: "v" * 512}
    async with running.sdk() as client:
        made = await client.responses.create(**ASKED, input="a", metadata=metadata)
        assert made.metadata == metadata
        assert (await client.responses.retrieve(made.id)).metadata == metadata
        streamed = await client.responses.create(**ASKED, input="a", metadata=metadata, stream=True)
        events = [event async for event in streamed]
        assert events[0].response.metadata == events[-1].response.metadata == metadata
        assert (await client.responses.create(**ASKED, input="a")).metadata == {}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("metadata", "param", "named"),
    [
        ({str(i): "" for i in range(17)}, "metadata", "16"),
        ({"k" * 65: "v"}, "metadata", "64"),
        ({"k": "v" * 513}, "metadata.k", "512"),
        ({"k": 5}, "metadata.k", "text, not 5"),
        ("k", "metadata", "dict"),
    ],
)
async def test_metadata_has_limits(
    running: Running, path: str, metadata: Any, param: str, named: str
) -> None:
    body = {"model": "tiny", "input": "a", "messages": [{"role": "user", "content": "a"}]}
    answer = await running.http.post(path, json={**body, "metadata": metadata})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert named in error["message"]
