"""instructor: pydantic models out of chats, by each of its modes."""

import pytest
from clients.shapes import QUESTION, Person

instructor = pytest.importorskip("instructor")
openai = pytest.importorskip("openai")


@pytest.fixture(params=["TOOLS", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def mode(request):
    return instructor.Mode[request.param]


def ask(server, client, **more):
    return client.create(
        model=server.model,
        messages=[{"role": "user", "content": QUESTION}],
        response_model=Person,
        max_retries=0,
        **more,
    )


def test_model_is_filled(server, mode):
    client = openai.OpenAI(base_url=server.openai_url, api_key=server.api_key, max_retries=0)
    assert isinstance(ask(server, instructor.from_openai(client, mode=mode)), Person)


async def test_model_is_filled_async(server, mode):
    client = openai.AsyncOpenAI(base_url=server.openai_url, api_key=server.api_key, max_retries=0)
    assert isinstance(await ask(server, instructor.from_openai(client, mode=mode)), Person)


def test_partial_models_grow(server):
    client = instructor.from_openai(
        openai.OpenAI(base_url=server.openai_url, api_key=server.api_key, max_retries=0),
        mode=instructor.Mode.TOOLS,
    )
    *_, last = client.create_partial(
        model=server.model,
        messages=[{"role": "user", "content": QUESTION}],
        response_model=Person,
        max_retries=0,
    )
    Person.model_validate(last.model_dump())


def test_anthropic_tools(server):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key=server.api_key, max_retries=0)
    wrapped = instructor.from_anthropic(client, mode=instructor.Mode.TOOLS)
    assert isinstance(ask(server, wrapped, max_tokens=200), Person)
