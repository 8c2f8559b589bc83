"""LangChain's chat models of both APIs."""

import pytest
from clients.shapes import QUESTION, TOO_LONG, Person, weather

langchain_openai = pytest.importorskip("langchain_openai")
langchain_anthropic = pytest.importorskip("langchain_anthropic")
messages = pytest.importorskip("langchain_core.messages")


@pytest.fixture(params=["chat", "responses", "anthropic"])
def api(request):
    return request.param


@pytest.fixture
def make(server, api):
    def make_model(**options):
        options = {
            "model": server.model,
            "api_key": server.api_key,
            "max_retries": 0,
            "max_tokens": 60,
            **options,
        }
        if api == "anthropic":
            return langchain_anthropic.ChatAnthropic(base_url=server.url, **options)
        return langchain_openai.ChatOpenAI(
            base_url=server.openai_url,
            use_responses_api=api == "responses",
            stream_usage=True,
            **options,
        )

    return make_model


def test_stream_equals_whole(make):
    model = make(temperature=0)
    whole = model.invoke(QUESTION)
    first, *rest = model.stream(QUESTION)
    for chunk in rest:
        first += chunk
    assert first.text == whole.text
    assert first.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 0
    assert first.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"] > 0


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(make, method):
    model = make(max_tokens=200).with_structured_output(Person, method=method)
    assert isinstance(model.invoke(QUESTION), Person)


def test_tool_goes_round(make):
    model = make().bind_tools([weather], tool_choice="weather")
    said = model.invoke(QUESTION)
    (call,) = said.tool_calls
    assert call["args"]["city"] in ("Rome", "Paris")
    result = messages.ToolMessage(content="sunny", tool_call_id=call["id"])
    history = [messages.SystemMessage("Be brief."), messages.HumanMessage(QUESTION), said, result]
    again = make().bind_tools([weather]).invoke(history)
    assert again.usage_metadata["output_tokens"] > 0


def test_streamed_tool_call_is_whole(make):
    first, *rest = make().bind_tools([weather], tool_choice="weather").stream(QUESTION)
    for chunk in rest:
        first += chunk
    (call,) = first.tool_calls
    assert call["args"]["city"] in ("Rome", "Paris")


async def test_many_at_once(make):
    answers = await make().abatch([QUESTION] * 8)
    assert len(answers) == 8


def test_prompt_that_is_too_long(make):
    with pytest.raises(Exception, match="2048"):
        make().invoke(TOO_LONG)


def test_anthropic_counts_tokens(server):
    model = langchain_anthropic.ChatAnthropic(
        base_url=server.url, api_key=server.api_key, model=server.model
    )
    assert model.get_num_tokens_from_messages([messages.HumanMessage(QUESTION)]) > 0


def test_logprobs_stop_and_choices(server):
    model = langchain_openai.ChatOpenAI(
        base_url=server.openai_url, api_key=server.api_key, model=server.model, max_tokens=40, n=3
    )
    result = model.generate(
        [[messages.HumanMessage(QUESTION)]], stop=["e"], logprobs=True, top_logprobs=3
    )
    (choices,) = result.generations
    assert len(choices) == 3
    for choice in choices:
        assert "e" not in choice.text
        assert len(choice.generation_info["logprobs"]["content"][0]["top_logprobs"]) == 3


def test_text_completions(server):
    model = langchain_openai.OpenAI(
        base_url=server.openai_url,
        api_key=server.api_key,
        model=server.model,
        max_tokens=8,
        temperature=0,
    )
    whole, _ = model.batch(["ROMEO:\n", "JULIET:\n"])
    assert "".join(model.stream("ROMEO:\n")) == whole != ""
