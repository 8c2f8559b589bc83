"""Pydantic AI's agents over both of OpenAI's APIs."""

import asyncio

import pytest
from clients.shapes import QUESTION, Person

pydantic_ai = pytest.importorskip("pydantic_ai")

from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402


@pytest.fixture(params=["chat", "responses"])
def model(server, request):
    provider = OpenAIProvider(base_url=server.openai_url, api_key=server.api_key)
    kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return kind(server.model, provider=provider)


async def test_text_and_history(model):
    agent = pydantic_ai.Agent(
        model, instructions="Be brief.", model_settings={"max_tokens": 30, "temperature": 0}
    )
    first = await agent.run(QUESTION)
    assert first.output
    assert first.usage.output_tokens > 0
    second = await agent.run("And from Padua?", message_history=first.all_messages())
    assert second.usage.input_tokens > 0


async def test_stream_equals_whole(model):
    agent = pydantic_ai.Agent(model, model_settings={"max_tokens": 30, "temperature": 0})
    whole = await agent.run(QUESTION)
    async with agent.run_stream(QUESTION) as streamed:
        assert await streamed.get_output() == whole.output


async def test_output_is_a_model(model):
    agent = pydantic_ai.Agent(model, output_type=Person, model_settings={"max_tokens": 1000})
    assert isinstance((await agent.run(QUESTION)).output, Person)


async def test_many_at_once(model):
    agent = pydantic_ai.Agent(model, model_settings={"max_tokens": 8})
    results = await asyncio.gather(*(agent.run(QUESTION) for _ in range(8)))
    assert len(results) == 8
