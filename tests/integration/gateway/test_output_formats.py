"""JSON, tools and reasoning over HTTP: what workers are asked, and how answers are read."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.running_gateway import Running, Start, running_gateway
from support.scripted_worker import ScriptedWorker, spell
from support.tiny_tokenizer import TEMPLATE, write_model_folder

from pagoda.rpc.v1 import generate_pb2
from pagoda_gateway.text import grammar_checker
from pagoda_gateway.text.tokenizer import ModelTokenizer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

EOS_ID = 1
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"where": {"type": "string"}},
            "required": ["where"],
        },
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "up"}}\n</tool_call>'


def by_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": by_schema(SCHEMA)},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "value": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"structured_outputs": {"regex": "[ab]+"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        {"guided_choice": ["a", "b"]},
        {"regex": "[ab]+"},
        {"ebnf": 'root ::= "a"'},
        {"ebnf": '%llguidance {}\nstart: "a"'},
        {"tools": [LOOK], "tool_choice": "required"},
        {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"tools": [{**LOOK, "function": {**LOOK["function"], "strict": True}}]},
    ],
)
async def test_workers_get_a_grammar(running: Running, fields: dict[str, Any]) -> None:
    assert (await running.chat(**fields)).status_code == 200
    assert json.loads(running.worker.requests[-1].sampling.grammar)["grammars"]


async def test_a_schema_beside_an_object_binds_as_one_of_its_own(running: Running) -> None:
    grammars = []
    for kind in ({"type": "json_object", "schema": SCHEMA}, by_schema(SCHEMA)):
        assert (await running.chat(response_format=kind)).status_code == 200
        grammars.append(running.worker.requests[-1].sampling.grammar)
    assert grammars[0] == grammars[1]


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
async def test_no_tools_are_as_if_not_sent(running: Running, choice: dict[str, Any]) -> None:
    answer = await running.chat(tools=[], **choice)
    assert answer.status_code == 200, answer.text
    refused = await running.chat(tools=[], tool_choice="required")
    assert refused.json()["error"]["param"] == "tool_choice"


async def test_empty_texts_of_sglang_ask_for_nothing(running: Running) -> None:
    assert (await running.chat(regex="", ebnf="")).status_code == 200
    assert not running.worker.requests[-1].sampling.grammar


async def test_former_names_beside_structured_outputs_ask_for_nothing(running: Running) -> None:
    answer = await running.chat(structured_outputs={"choice": ["a"]}, guided_regex="b")
    assert answer.headers["x-pagoda-ignored"] == "guided_regex"
    grammar = running.worker.requests[-1].sampling.grammar
    await running.chat(structured_outputs={"choice": ["a"]})
    assert grammar == running.worker.requests[-1].sampling.grammar


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"tools": [LOOK]},
        {"tools": [LOOK], "tool_choice": "none"},
        {"tools": None, "tool_choice": "none"},
    ],
)
async def test_nothing_binds_what_asks_for_nothing(
    running: Running, fields: dict[str, Any]
) -> None:
    assert (await running.chat(**fields)).status_code == 200
    assert running.worker.requests[-1].sampling.grammar == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": by_schema({"type": "strin"})}, "response_format.json_schema.schema"),
        ({"response_format": by_schema({"not": {}})}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"grammar": "???"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"colour": "red"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_object", "schema": 7}}, "response_format.schema"),
        ({"tools": [{"foo": 1}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [LOOK, LOOK]}, "tools[1].function.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {}}, "tool_choice"),
        (
            {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
    ],
)
async def test_what_is_wrong_is_named(running: Running, fields: dict[str, Any], param: str) -> None:
    answer = await running.chat(**fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]


def tool(name: str, parameters: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def holding(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
GOOD = by_schema(SCHEMA)
BAD = tool("bad", holding(tags=UNIQUE), strict=True)
TOOLS = [tool(f"good_{i}", SCHEMA) for i in range(9)]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"tools": [*TOOLS[:7], BAD, *TOOLS[7:]], "tool_choice": "required"},
            "tools",
            ["the parameters of 'bad' (tools[7])", "'uniqueItems' at '/properties/tags'"],
        ),
        (
            {"tools": [BAD], "response_format": GOOD},
            "tools",
            ["the parameters of 'bad' (tools[0])", "'uniqueItems' at '/properties/tags'"],
        ),
        (
            {"tools": [tool("bad", holding(a={"type": "strin"}), strict=True)]},
            "tools",
            ["the parameters of 'bad' (tools[0])", "'type' at '/properties/a'"],
        ),
        (
            {"tools": [tool("bad", {"type": "objekt"}, strict=True)], "tool_choice": "required"},
            "tools",
            ["the parameters of 'bad' (tools[0])", "'type' at the top is 'objekt'", "object"],
        ),
        (
            {"tools": [tool("bad", {"type": "array", "items": {}}, strict=True)]},
            "tools",
            ["the parameters of 'bad' (tools[0])", "'type' at the top is 'array'", "object"],
        ),
        (
            {"tools": [tool("bad", {"properties": {}, "required": 5}, strict=True)]},
            "tools",
            ["the parameters of 'bad' (tools[0])", "'required' at the top is 5"],
        ),
        (
            {"structured_outputs": {}},
            "structured_outputs",
            ["json, json_object, regex, choice, grammar"],
        ),
        (
            {"tools": [BAD], "response_format": by_schema(UNIQUE)},
            "response_format.json_schema.schema",
            ["'uniqueItems' at the top", "'uniqueItems' at '/properties/tags'"],
        ),
        (
            {"response_format": by_schema(holding(a={"type": "string", "pattern": "^(?!x)"}))},
            "response_format.json_schema.schema",
            ["'pattern' at '/properties/a' is '^(?!x)': look-around"],
        ),
        (
            {"structured_outputs": {"regex": "(a|b)*c\\1"}},
            "structured_outputs.regex",
            ["(a|b)*c", "backreferences are not supported"],
        ),
        (
            {"guided_regex": "(?=a)b"},
            "guided_regex",
            ["(?=a)b", "look-around"],
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
            "structured_outputs",
            ["whitespace_pattern", "one optional space"],
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": 1}},
            "structured_outputs.disable_any_whitespace",
            ["true or false"],
        ),
    ],
)
async def test_what_cannot_be_enforced_is_named_with_its_place(
    running: Running, fields: dict[str, Any], param: str, words: list[str]
) -> None:
    answer = await running.chat(**fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert [part for part in words if part not in error["message"]] == []


@pytest.mark.parametrize(
    "parameters",
    [holding(tags=UNIQUE), holding(a={"type": "strin"}), {"type": "string"}],
    ids=["of another grammar", "of no schema", "of no object"],
)
async def test_arguments_of_a_tool_that_is_not_strict_may_be_any_object(
    running: Running, parameters: dict[str, Any]
) -> None:
    tools = [TOOLS[0], tool("odd", parameters)]
    answer = await running.chat(tools=tools, tool_choice="required")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-pagoda-ignored"] == "tools[1]"
    grammar = running.worker.requests[-1].sampling.grammar
    assert "integer" in grammar, "that of the other one is enforced"
    assert "uniqueItems" not in grammar


async def test_a_schema_that_cannot_be_enforced_is_named_beside_other_fields(
    running: Running,
) -> None:
    answer = await running.chat(response_format=by_schema(UNIQUE), stop_token_ids=[10**6])
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "'uniqueItems' at the top" in message
    assert "'stop_token_ids'" in message


async def test_options_that_change_nothing_are_named(running: Running) -> None:
    wanted = {"json": SCHEMA, "disable_any_whitespace": False, "disable_fallback": True}
    answer = await running.chat(structured_outputs=wanted, mistake=1)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-pagoda-ignored"] == (
        "mistake,structured_outputs.disable_any_whitespace,structured_outputs.disable_fallback"
    )


async def test_a_grammar_that_is_too_large_is_refused_at_once(running: Running) -> None:
    large = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(9000)}}
    answer = await running.chat(response_format=by_schema(large))
    assert answer.status_code == 400
    assert "the limit is" in answer.json()["error"]["message"]


async def test_a_grammar_that_compiles_for_long_costs_only_its_own_request(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 4000 properties are optional: each may follow each, and that takes seconds."""
    monkeypatch.setattr(grammar_checker, "COMPILE_SECONDS", 0.05)
    slow = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(4000)}}
    answer = await running.chat(response_format=by_schema(slow))
    assert answer.status_code == 400, answer.text
    assert "to compile" in answer.json()["error"]["message"]
    assert (await running.chat()).status_code == 200


async def test_a_worker_that_cannot_go_on_is_not_tried_twice(running: Running) -> None:
    before = len(running.worker.requests)
    running.worker.gate_index, running.worker.finish_error = 2, "the grammar: too complex"
    running.worker.finish_reason = generate_pb2.FINISH_REASON_INVALID
    try:
        answer = await running.chat(response_format={"type": "json_object"})
    finally:
        running.worker.gate_index, running.worker.finish_error = None, ""
        running.worker.finish_reason = generate_pb2.FINISH_REASON_ERROR
    assert answer.status_code == 400
    assert "too complex" in answer.json()["error"]["message"]
    assert len(running.worker.requests) == before + 1


@pytest.fixture
def saying(start: Start, model_folder: Path) -> Any:
    """Start a gateway whose worker says this text, and nothing after it."""

    tokenizer = ModelTokenizer.load(model_folder)

    def start_saying(bus: Any, text: str) -> Any:
        token_ids = [*tokenizer.encode(text, add_special_tokens=False), EOS_ID]
        return start(ScriptedWorker(bus, token_at=spell(token_ids), step_seconds=0.002))

    return start_saying


async def test_calls_are_read_whole_and_streamed(saying: Any, bus: Any) -> None:
    async with saying(bus, f"Let me see.{CALL}\n{CALL}") as running:
        options = {"tools": [LOOK], "max_tokens": 400}
        (choice,) = (await running.chat(**options)).json()["choices"]
        chunks = await running.events(**options)
        (only,) = (await running.chat(max_tokens=400)).json()["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "Let me see."
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [{"name": "look", "arguments": '{"where": "up"}'}] * 2
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("content") or "" for d in deltas) == "Let me see."
    pieces = [call for d in deltas for call in d.get("tool_calls", ())]
    for index in range(2):
        mine = [piece for piece in pieces if piece["index"] == index]
        assert [p["function"].get("name") for p in mine] == ["look"] + [None] * (len(mine) - 1)
        assert ["id" in p for p in mine] == [True] + [False] * (len(mine) - 1)
        assert "".join(p["function"]["arguments"] for p in mine) == '{"where": "up"}'
    assert len([p for p in pieces if p["index"] == 0]) > 3, "arguments come as they are written"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert only["message"]["content"] == f"Let me see.{CALL}\n{CALL}", "nobody asked for tools"


@pytest.mark.parametrize(
    ("stop", "arguments", "reason"),
    [
        ("up", '{"where": "', "stop"),
        ("arguments", "", "stop"),
        ("</tool_call>", '{"where": "up"}', "tool_calls"),
    ],
)
async def test_a_stop_string_within_a_call_leaves_none_to_make(
    saying: Any, bus: Any, stop: str, arguments: str, reason: str
) -> None:
    async with saying(bus, CALL) as running:
        options = {"tools": [LOOK], "max_tokens": 400, "stop": [stop]}
        (choice,) = (await running.chat(**options)).json()["choices"]
        *_, last = await running.events(**options)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": arguments}
    assert choice["finish_reason"] == last["choices"][0]["finish_reason"] == reason
    assert choice["stop_reason"] == stop


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("01", {}),
        ('"x\ny"', {"where": "x\ny"}),
        (r'"\ud800"', {}),  # half of a pair: no text
        ("9" * 30, {}),  # JSON that is written here has no such number
    ],
)
async def test_a_call_that_is_written_wrongly_is_one_all_the_same(
    saying: Any, bus: Any, written: str, read: dict[str, Any]
) -> None:
    async with saying(bus, CALL.replace('"up"', written)) as running:
        (choice,) = (await running.chat(tools=[LOOK], max_tokens=400)).json()["choices"]
        tool = {"name": "look", "input_schema": {"type": "object"}}
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 400}
        message = await running.http.post("/v1/messages", json={**asked, "tools": [tool]})
    assert choice["finish_reason"] == "tool_calls"
    assert (message.status_code, message.json()["stop_reason"]) == (200, "tool_use")
    assert message.json()["content"][-1]["input"] == read


async def test_text_beside_tools_is_text(saying: Any, bus: Any) -> None:
    async with saying(bus, "No need to look.") as running:
        (choice,) = (await running.chat(tools=[LOOK], max_tokens=100)).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "No need to look."
    assert "tool_calls" not in choice["message"]


async def test_parameters_one_by_one_become_arguments(
    nats_common: Any, bus: Any, tmp_path: Path
) -> None:
    template = TEMPLATE + "{# <tool_call> <function= <parameter= #}"
    folder = write_model_folder(tmp_path / "coder", chat_template=template)
    parameter = "<parameter=where>\nup\n</parameter>\n"
    said = f"<tool_call>\n<function=look>\n{parameter}</function>\n</tool_call>"
    ids = ModelTokenizer.load(folder).encode(said, add_special_tokens=False)
    worker = ScriptedWorker(bus, token_at=spell([*ids, EOS_ID]), step_seconds=0.002)
    schema = {"type": "object", "anyOf": [{"required": ["where"]}]}
    odd = {"type": "function", "function": {"name": "look", "parameters": schema}}
    strict = {"type": "function", "function": {**odd["function"], "strict": True}}
    async with running_gateway(nats_common, bus, folder, worker) as running:
        options = {"tools": [LOOK], "max_tokens": 200}
        (whole,) = (await running.chat(**options)).json()["choices"]
        chunks = await running.events(**options)
        loose = await running.chat(tools=[odd], tool_choice="required", max_tokens=200)
        refused = await running.chat(tools=[strict], tool_choice="required")
    (call,) = whole["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"where": "up"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"where": "up"}'
    assert len(pieces) > 1  # how many, depends on how many tokens come at once
    assert loose.headers["x-pagoda-ignored"] == "tools[0]"
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
