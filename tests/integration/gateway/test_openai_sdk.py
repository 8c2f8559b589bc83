"""The official client against a running gateway."""

import openai
import pytest
from support.running_gateway import CHAT, Running

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_chat_whole_and_streamed(running: Running) -> None:
    async with running.sdk() as client:
        whole = await client.chat.completions.create(**CHAT, temperature=0)
        stream = await client.chat.completions.create(
            **CHAT, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 8
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


async def test_completions(running: Running) -> None:
    async with running.sdk() as client:
        answer = await client.completions.create(
            model="tiny", prompt=["a", "b"], max_tokens=4, logprobs=2
        )
        stream = await client.completions.create(model="tiny", prompt="a", stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None
    assert len("".join(texts)) == 16


async def test_models(running: Running) -> None:
    async with running.sdk() as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "pagoda"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("gpt-9")


async def test_errors_become_the_clients_own_types(running: Running) -> None:
    async with running.sdk() as client:
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await client.chat.completions.create(**{**CHAT, "temperature": -1})
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            await client.chat.completions.create(**{**CHAT, "model": "gpt-9"})
    async with running.sdk().with_options(api_key="sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_logprobs_and_raw_headers(running: Running) -> None:
    async with running.sdk() as client:
        raw = await client.chat.completions.with_raw_response.create(
            **CHAT, logprobs=True, top_logprobs=2
        )
    assert raw.headers["x-request-id"]
    logprobs = raw.parse().choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 8
