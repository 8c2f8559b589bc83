"""Tools of free text over HTTP: calls, streams, histories, and what binds their texts."""

from typing import Any

import pytest
from support.running_gateway import Running, Start, says

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

RESPONSES = "/v1/responses"
TEXT = '*** Begin\n+"é"\t\\n\n*** End'
CALL = (
    '<tool_call>\n{"name": "patch", "arguments": '
    '{"input": "*** Begin\\n+\\"é\\"\\t\\\\n\\n*** End"}}\n</tool_call>'
)
PATCH: dict[str, Any] = {"type": "custom", "custom": {"name": "patch", "description": "Edits."}}
LARK = {"syntax": "lark", "definition": "start: /.+/s"}
FLAT: dict[str, Any] = {"type": "custom", "name": "patch", "format": {"type": "grammar", **LARK}}
MESSAGES = [{"role": "user", "content": "hello world"}]


def patterned(pattern: str) -> dict[str, Any]:
    return described("x", {"syntax": "regex", "definition": pattern})


def described(name: str, grammar: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": {"name": name, "format": form}}


async def test_a_call_of_a_chat(start: Start, bus: Any, model_folder: Any) -> None:
    tools: Any = [PATCH]
    async with start(says(bus, model_folder, CALL)) as running, running.sdk() as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=tools, max_tokens=200
        )
        prompt = await running.prompt_text()
        events = await running.events(tools=tools, max_tokens=200)
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls or []
        history = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "done"},
        ]
        assert (await running.chat(tools=tools, messages=history)).status_code == 200
        later = await running.prompt_text()
    assert choice.finish_reason == "tool_calls"
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("patch", TEXT)
    assert "patch" in prompt
    deltas = [
        delta
        for event in events
        for choice in event["choices"]
        for delta in choice["delta"].get("tool_calls", ())
    ]
    assert {"index", "id", "type", "custom"} == deltas[0].keys()
    assert deltas[0]["custom"]["name"] == "patch"
    assert all(delta["custom"]["input"] for delta in deltas[1:])
    assert "".join(delta["custom"]["input"] for delta in deltas) == TEXT
    assert later.count("*** Begin") == 1
    assert "done" in later


async def test_a_call_of_a_response(start: Start, bus: Any, model_folder: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "tools": [FLAT], "max_output_tokens": 200}
    async with start(says(bus, model_folder, CALL)) as running, running.sdk() as client:
        raw = await client.responses.with_raw_response.create(input="hello", **asked)
        response = raw.parse()
        assert "patch" in await running.prompt_text()
        async with client.responses.stream(input="hello", **asked) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        (call,) = response.output
        assert call.type == "custom_tool_call"
        output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
        sent: Any = [{"role": "user", "content": "hello"}, call.model_dump(), output]
        for more in (
            {"input": sent},
            {"input": [output], "previous_response_id": response.id},
        ):
            later = await client.responses.create(**{**asked, **more})
            prompt = await running.prompt_text()
            assert prompt.count("*** Begin") == 1
            assert "done" in prompt
        items = await client.responses.input_items.list(later.id, order="asc")
    assert raw.headers["x-pagoda-ignored"] == "tools[0]"
    assert response.tools[0].to_dict() == {"description": None, **FLAT}
    assert (call.name, call.input) == ("patch", TEXT)
    assert call.id is not None
    assert call.id.startswith("ctc_")
    kinds = [event.type for event in events]
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == TEXT
    assert all(deltas)
    (done,) = [e for e in events if e.type == "response.custom_tool_call_input.done"]
    assert done.input == TEXT
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert final.output[0].model_dump()["input"] == TEXT
    assert [item.type for item in items.data] == [
        "message",
        "custom_tool_call",
        "custom_tool_call_output",
    ]
    assert items.data[1].model_dump()["input"] == TEXT


async def test_a_call_that_is_cut(start: Start, bus: Any, model_folder: Any) -> None:
    async with start(says(bus, model_folder, CALL)) as running:
        asked = {"model": "tiny", "input": "hello", "tools": [FLAT], "max_output_tokens": 60}
        response = (await running.http.post(RESPONSES, json=asked)).json()
        stopped = await running.chat(tools=[PATCH], max_tokens=200, stop="End")
    (call,) = response["output"]
    assert call["status"] == "incomplete"
    assert TEXT.startswith(call["input"])
    (choice,) = stopped.json()["choices"]
    assert choice["finish_reason"] == "stop"  # a stop string within the call
    assert choice["message"]["tool_calls"][0]["custom"]["input"] == TEXT.removesuffix("End")


async def test_what_binds_a_text(running: Running) -> None:
    pattern = patterned("(?:on|off)")
    await running.chat(tools=[pattern])  # held with auto, too
    assert "(?:on|off)" in running.worker.requests[-1].sampling.grammar
    answer = await running.chat(tools=[PATCH])
    assert running.worker.requests[-1].sampling.grammar == ""
    assert "x-pagoda-ignored" not in answer.headers
    lark = described("y", LARK)
    answer = await running.chat(tools=[PATCH, lark])
    assert answer.headers["x-pagoda-ignored"] == "tools[1]"
    named = {"type": "custom", "custom": {"name": "patch"}}
    await running.chat(tools=[PATCH, lark], tool_choice=named)
    grammar = running.worker.requests[-1].sampling.grammar
    assert ("patch" in grammar, "input" in grammar) == (True, True)
    error = (await running.chat(tools=[patterned("(?=a)b")])).json()["error"]
    assert error["param"] == "tools"
    assert "'x' (tools[0])" in error["message"]


async def test_one_in_a_namespace(start: Start, bus: Any, model_folder: Any) -> None:
    call = CALL.replace('"patch"', '"files__patch"')
    tools = [{"type": "namespace", "name": "files", "tools": [FLAT]}]
    asked = {"model": "tiny", "input": "hello", "tools": tools, "max_output_tokens": 200}
    async with start(says(bus, model_folder, call)) as running:
        answer = await running.http.post(RESPONSES, json=asked)
        choice = {"type": "custom", "name": "patch"}
        chosen = await running.http.post(RESPONSES, json={**asked, "tool_choice": choice})
    (item,) = answer.json()["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "files", "patch")
    assert item["input"] == TEXT
    assert answer.headers["x-pagoda-ignored"] == "tools[0].tools[0]"
    assert chosen.status_code == 200
