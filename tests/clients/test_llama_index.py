"""LlamaIndex's client for servers that speak OpenAI's API."""

import pytest
from clients.shapes import QUESTION, Person

openai_like = pytest.importorskip("llama_index.llms.openai_like")


@pytest.fixture
def llm(server):
    return openai_like.OpenAILike(
        model=server.model,
        api_base=server.openai_url,
        api_key=server.api_key,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        max_tokens=60,
        temperature=0,
        max_retries=0,
    )


def test_stream_equals_whole(llm):
    *_, last = llm.stream_complete(QUESTION)
    assert last.text == llm.complete(QUESTION).text


def test_output_is_a_model(llm):
    assert isinstance(llm.as_structured_llm(Person).complete(QUESTION).raw, Person)


async def test_async(llm):
    assert (await llm.acomplete(QUESTION)).text


def test_text_completion(server):
    llm = openai_like.OpenAILike(
        model=server.model,
        api_base=server.openai_url,
        api_key=server.api_key,
        max_tokens=8,
        temperature=0,  # drawn tokens may end before the eighth
    )
    assert llm.complete("ROMEO:\n").raw.usage.completion_tokens == 8
