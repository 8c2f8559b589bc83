"""OpenAI's Agents SDK: a forced tool, its result, and an answer of a type."""

import pytest
from clients.shapes import QUESTION, Person, weather

agents = pytest.importorskip("agents")
openai = pytest.importorskip("openai")

agents.set_tracing_disabled(True)


@pytest.fixture(params=["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def model(server, request):
    client = openai.AsyncOpenAI(base_url=server.openai_url, api_key=server.api_key, max_retries=0)
    return getattr(agents, request.param)(server.model, openai_client=client)


def agent(model, **more):
    more = {"model_settings": agents.ModelSettings(max_tokens=60, temperature=0), **more}
    return agents.Agent(name="herald", instructions="Be brief.", model=model, **more)


async def test_text(model):
    result = await agents.Runner.run(agent(model), QUESTION)
    assert result.final_output
    assert result.context_wrapper.usage.output_tokens > 0


async def test_streamed_text(model):
    result = agents.Runner.run_streamed(agent(model), QUESTION)
    events = [event async for event in result.stream_events()]
    assert events
    assert result.final_output


async def test_tool_goes_round(model):
    called = []

    @agents.function_tool
    def news(city: str) -> str:
        called.append(city)
        return "none"

    tool = agents.function_tool(weather)
    settings = agents.ModelSettings(max_tokens=60, temperature=0, tool_choice="weather")
    result = await agents.Runner.run(
        agent(model, tools=[tool, news], model_settings=settings), QUESTION, max_turns=8
    )
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"]


async def test_output_is_a_model(model):
    result = await agents.Runner.run(agent(model, output_type=Person), QUESTION)
    assert isinstance(result.final_output, Person)
