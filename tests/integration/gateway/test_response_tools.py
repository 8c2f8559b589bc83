"""Tools of the Responses API beyond a function: namespaces, searches; and references to items."""

import time
from typing import Any

import orjson
import pytest
from support.running_gateway import Running, Start
from support.scripted_worker import ScriptedWorker, spell
from support.tiny_tokenizer import EOS_ID

from pagoda_gateway.text.tokenizer import ModelTokenizer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PATH = "/v1/responses"
ASKED: dict[str, Any] = {"model": "tiny", "input": "hello world", "max_output_tokens": 200}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": CITY}
TRAVEL = {"type": "namespace", "name": "travel", "description": "Trips", "tools": [WEATHER]}
CALL = (
    '<tool_call>\n{"name": "travel__weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


async def ask(running: Running, **fields: Any) -> Any:
    answer = await running.http.post(PATH, json={**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    return answer


async def error_of(running: Running, **fields: Any) -> dict[str, Any]:
    answer = await running.http.post(PATH, json={**ASKED, **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


async def test_calls_into_a_namespace(start: Start, bus: Any, model_folder: Any) -> None:
    ids = ModelTokenizer.load(model_folder).encode(CALL, add_special_tokens=False)
    worker = ScriptedWorker(bus, token_at=spell([*ids, EOS_ID]))
    tools: Any = [WEATHER, TRAVEL]
    async with start(worker) as running, running.sdk() as client:
        whole = (await ask(running, tools=tools)).json()
        assert "travel__weather" in await running.prompt_text()
        async with client.responses.stream(**ASKED, tools=tools) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        into, beside = whole["output"]
        output = {"type": "function_call_output", "call_id": into["call_id"], "output": "warm"}
        await ask(running, tools=tools, input=[into, output])
        assert (await running.prompt_text()).count("travel__weather") == 2
        kept = await running.http.get(f"{PATH}/{whole['id']}")
        await ask(running, input=[output], previous_response_id=whole["id"])
        listed = await running.http.get(f"{PATH}/{whole['id']}/input_items")
    assert (into["namespace"], into["name"]) == ("travel", "weather")
    assert orjson.loads(into["arguments"]) == {"city": "Rome"}
    assert (beside.get("namespace"), beside["name"]) == (None, "weather")
    assert [tool["type"] for tool in whole["tools"]] == ["function", "namespace"]
    assert kept.json()["output"] == whole["output"]
    assert listed.status_code == 200
    streamed = [item for item in final.output if item.type == "function_call"]
    assert [(call.namespace, call.name) for call in streamed] == [
        ("travel", "weather"),
        (None, "weather"),
    ]
    added = [e.item for e in events if e.type == "response.output_item.added"]
    assert added[0].type == "function_call"
    assert added[0].namespace == "travel"


async def test_functions_of_namespaces_are_chosen_and_bound(running: Running) -> None:
    other = {**WEATHER, "name": "seats", "parameters": {"type": "object", "not": {}}}
    tools = [{**TRAVEL, "tools": [WEATHER, other]}]
    named = {"type": "function", "name": "weather"}
    await ask(running, tools=tools, tool_choice=named)
    assert "travel__weather" in running.worker.requests[-1].sampling.grammar
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    await ask(running, tools=tools, tool_choice=allowed)
    assert "travel__seats" not in running.worker.requests[-1].sampling.grammar
    answer = await ask(running, tools=tools, tool_choice="required")
    assert answer.headers["x-pagoda-ignored"] == "tools[0].tools[1]"
    error = await error_of(running, tools=tools, tool_choice={**named, "name": "trains"})
    assert "'trains'" in error["message"]
    tools.append({**TRAVEL, "name": "home"})
    error = await error_of(running, tools=tools, tool_choice=named)
    assert "several namespaces" in error["message"]
    for choice in (
        {**named, "namespace": "home"},
        {**allowed, "tools": [{**named, "namespace": "home"}, {"type": "web_search"}]},
    ):
        await ask(running, tools=tools, tool_choice=choice)
        grammar = running.worker.requests[-1].sampling.grammar
        assert ("home__weather" in grammar, "travel__weather" in grammar) == (True, False)


async def test_many_functions_and_choices_take_no_time(running: Running) -> None:
    functions = [{**WEATHER, "name": f"f{i}"} for i in range(1000)]
    allowed = [{"type": "function", "name": "zz"}] * 50_000
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    started = time.process_time()
    error = await error_of(running, tools=[{**TRAVEL, "tools": functions}], tool_choice=choice)
    assert "'zz'" in error["message"]
    assert time.process_time() - started < 5  # each function for each choice took minutes
    tools = [{**TRAVEL, "name": f"n{i}", "tools": functions} for i in range(2)]
    error = await error_of(running, tools=tools)
    assert error["message"].startswith("'tools' has 2000 functions; the limit is 1024")


async def test_functions_that_may_not_be_called_leave_the_form_of_the_text(
    running: Running,
) -> None:
    form = {"text": {"format": {"type": "json_object"}}, "tool_choice": "none"}
    for tools in ([WEATHER], [TRAVEL], [WEATHER, TRAVEL]):
        await ask(running, tools=tools, **form)
        assert running.worker.requests[-1].sampling.grammar
        assert "weather" not in await running.prompt_text()


async def test_a_search_is_left_out_and_named(running: Running) -> None:
    search = {"type": "web_search", "external_web_access": True}
    others = [{"type": "web_search_preview_2025_03_11"}, {"type": "tool_search", "name": 5}]
    answer = await ask(running, tools=[search, WEATHER, *others])
    assert answer.headers["x-pagoda-ignored"] == "tools[0],tools[2],tools[3]"
    assert [tool["name"] for tool in answer.json()["tools"]] == ["weather"]
    assert "web_search" not in await running.prompt_text()
    await ask(running, tools=[search])
    error = await error_of(running, tools=[search], tool_choice="required")
    assert error["param"] == "tool_choice"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{**TRAVEL, "tools": []}], "tools[0].tools"),
        ([{**TRAVEL, "tools": None}], "tools[0].tools"),
        ([{**TRAVEL, "tools": [WEATHER, WEATHER]}], "tools[0].tools[1].name"),
        ([{**TRAVEL, "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
        ([{**TRAVEL, "tools": [TRAVEL]}], "tools[0].tools[0]"),
        ([{**TRAVEL, "tools": [{"type": "web_search"}]}], "tools[0].tools[0]"),
        ([TRAVEL, {**WEATHER, "name": "travel__weather"}], "tools[1].name"),
        ([{**TRAVEL, "tools": [{**WEATHER, "name": "x" * 249}]}], "tools[0].tools[0].name"),
    ],
)
async def test_what_is_wrong_with_a_namespace(running: Running, tools: Any, param: str) -> None:
    error = await error_of(running, tools=tools)
    assert error["param"] == param
    assert f"'{param}'" in error["message"]


async def test_an_item_is_referred_to(running: Running) -> None:
    few = {"max_output_tokens": 20}
    first = (await ask(running, input="who is there", **few)).json()
    said = {"type": "item_reference", "id": first["output"][0]["id"]}
    text = first["output"][0]["content"][0]["text"]
    items = [{"role": "user", "content": "hi"}, said]
    second = (await ask(running, input=items, **few)).json()
    assert text in await running.prompt_text()
    # What went on with it has the item itself.
    await running.http.delete(f"{PATH}/{first['id']}")
    await ask(running, input=[said], previous_response_id=second["id"], **few)
    assert (await running.prompt_text()).count(text) >= 2
    error = await error_of(running, input=[said])
    assert error["param"] == "input[0]"
    assert said["id"] in error["message"]


async def test_a_conversation_holds_no_references(running: Running) -> None:
    items = [{"type": "item_reference", "id": "msg_1"}]
    answer = await running.http.post("/v1/conversations", json={"items": items})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "items[0]"


async def test_items_of_others_and_too_many_are_not_referred_to(running: Running) -> None:
    for name in ("msg_x", "", "_", "msg_01K_0_1", "resp_" + "x" * 3000):
        reference = {"type": "item_reference", "id": name}
        assert (await error_of(running, input=[reference]))["param"] == "input[0]"
    known = (await ask(running, input="a")).json()["output"][0]["id"]
    twice = [{"type": "item_reference", "id": known} for _ in range(2)]
    assert "twice" in (await error_of(running, input=twice))["message"]
    responses = [(await ask(running, max_output_tokens=1)).json() for _ in range(129)]
    many = [{"type": "item_reference", "id": r["output"][0]["id"]} for r in responses]
    error = await error_of(running, input=many, truncation="auto")
    assert (error["param"], "128 responses" in error["message"]) == ("input[128]", True)


async def test_every_bad_tool_is_named_by_its_place(running: Running) -> None:
    tools = [WEATHER, {"type": "file_search"}, {"type": "function"}, {"type": "custom", "name": 5}]
    answer = await running.http.post(PATH, json={**ASKED, "tools": tools})
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("tools[1]", "unsupported_parameter")
    for words in ("'tools[1]' has type 'file_search'", "'tools[2].name'", "'tools[3].name'"):
        assert words in error["message"]
    chat = (await running.chat(tools=[{"type": "file_search"}])).json()["error"]
    answer = await running.http.post(PATH, json={**ASKED, "tools": [{"type": "file_search"}]})
    assert answer.json()["error"] == chat
