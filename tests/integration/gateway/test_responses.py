"""OpenAI's Responses API, with its official client, against a scripted worker."""

import asyncio
from typing import Any

import openai
import orjson
import pytest
from support.running_gateway import CHAT, Running, Start, running_gateway, says
from support.scripted_worker import ScriptedWorker
from support.tiny_tokenizer import TEMPLATE, write_model_folder

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PATH = "/v1/responses"
ASKED: dict[str, Any] = {"model": "tiny", "input": "hello world", "max_output_tokens": 8}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": None,
}
CALL = 'Look:<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


async def events_of(running: Running, **fields: Any) -> list[dict[str, Any]]:
    """Return a stream's events; checks the framing and the numbers."""
    answer = await running.http.post(PATH, json={**ASKED, **fields, "stream": True})
    assert answer.status_code == 200, answer.text
    events = []
    for block in answer.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events


async def test_a_response_and_its_usage(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, cached=4)) as running, running.sdk() as client:
        response = await client.responses.create(
            **ASKED, instructions="be brief", temperature=0, top_p=0.9
        )
        receipt = await running.http.get(f"/v1/receipts/{response.id.removeprefix('resp_')}")
        prompt = await running.prompt_text()
    assert (response.object, response.status) == ("response", "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert len(response.output_text) == 8
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.total_tokens == response.usage.input_tokens + 8
    assert (response.instructions, response.temperature, response.top_p) == ("be brief", 0, 0.9)
    assert (receipt.json()["endpoint"], receipt.json()["output_tokens"]) == ("responses", 8)
    assert prompt == "<|bos|><|system|>be brief<|end|><|user|>hello world<|end|><|assistant|>"


async def test_a_stream_is_the_whole_response(running: Running) -> None:
    async with running.sdk() as client:
        whole = await client.responses.create(**ASKED, temperature=0)
        stream = await client.responses.create(**ASKED, temperature=0, stream=True)
        events = [event async for event in stream]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == text
    assert last.response.usage == whole.usage


async def test_events_in_their_order(running: Running) -> None:
    events = await events_of(running)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert events[2]["item"]["status"] == "in_progress"
    assert events[-2]["item"] == events[-1]["response"]["output"][0]
    assert events[-2]["item"]["status"] == "incomplete"


async def test_a_call_and_its_answer(start: Start, bus: Any, model_folder: Any) -> None:
    async with start(says(bus, model_folder, CALL)) as running, running.sdk() as client:
        options = {**ASKED, "max_output_tokens": 200, "tools": [WEATHER]}
        whole = await client.responses.create(**options)
        async with client.responses.stream(**options) as stream:
            final = await stream.get_final_response()
        kinds = {e["type"] for e in await events_of(running, **options)}
        call = whole.output[1]
        assert call.type == "function_call"
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "warm"}
        await client.responses.create(
            **{**options, "input": [output], "previous_response_id": whole.id}  # type: ignore[arg-type]
        )
        prompt = await running.prompt_text()
    for response in (whole, final):
        said, called = response.output
        assert response.status == "completed"
        assert said.type == "message"
        assert response.output_text == "Look:"
        assert called.type == "function_call"
        assert (called.name, orjson.loads(called.arguments)) == ("weather", {"city": "Rome"})
    assert "response.function_call_arguments.delta" in kinds
    assert "response.function_call_arguments.done" in kinds
    offered, asked, called_text, warm = prompt.split("<|end|>")[:4]
    assert (offered, asked) == ("<|bos|><|system|>weather", "<|user|>hello world")
    assert called_text.startswith("<|assistant|>Look:")
    assert call.call_id in called_text
    assert warm == "<|user|>warm"


async def test_only_the_item_that_was_cut_is_incomplete(
    start: Start, bus: Any, model_folder: Any
) -> None:
    async with start(says(bus, model_folder, CALL)) as running:
        events = await events_of(running, max_output_tokens=60, tools=[WEATHER])
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call"]
    assert [item["status"] for item in output] == ["completed", "incomplete"]
    assert output == [e["item"] for e in events if e["type"] == "response.output_item.done"]


async def test_a_call_that_is_whole_is_complete_though_the_next_one_was_cut(
    start: Start, bus: Any, model_folder: Any
) -> None:
    async with start(says(bus, model_folder, CALL + CALL.removeprefix("Look:"))) as running:
        events = await events_of(running, max_output_tokens=len(CALL) + 20, tools=[WEATHER])
    response = events[-1]["response"]
    assert response["status"] == "incomplete"
    _, call = response["output"]
    assert (call["type"], call["status"]) == ("function_call", "completed")
    assert orjson.loads(call["arguments"]) == {"city": "Rome"}
    assert response["output"] == [
        e["item"] for e in events if e["type"] == "response.output_item.done"
    ]


async def test_items_become_messages(running: Running) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    one = [{"type": "input_text", "text": "1"}]
    items = [
        {"role": "developer", "content": "brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_2", "summary": [], "content": None},
        call,
        {**call, "call_id": "d"},
        {"type": "function_call_output", "call_id": "c", "output": one},
        {"type": "function_call_output", "call_id": "d", "output": "2"},
    ]
    answer = await running.http.post(PATH, json={**ASKED, "input": items})
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in "cd"]
    same = await running.http.post(
        "/tokenize",
        json={
            "messages": [
                {"role": "developer", "content": "brief"},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "tool_calls": calls},
                {"role": "tool", "content": "1", "tool_call_id": "c"},
                {"role": "tool", "content": "2", "tool_call_id": "d"},
            ]
        },
    )
    assert answer.json()["usage"]["input_tokens"] == same.json()["count"]


async def test_a_response_is_kept_found_continued_and_deleted(running: Running) -> None:
    async with running.sdk() as client:
        first = await client.responses.create(**ASKED, instructions="only once")
        assert (await client.responses.retrieve(first.id)).output == first.output
        second = await client.responses.create(
            model="tiny", input="more", previous_response_id=first.id, max_output_tokens=2
        )
        assert second.previous_response_id == first.id
        prompt = await running.prompt_text()
        asked = f"<|user|>hello world<|end|><|assistant|>{first.output_text}<|end|>"
        assert prompt == f"<|bos|>{asked}<|user|>more<|end|><|assistant|>"
        await client.responses.delete(first.id)
        for lost in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError, match="is kept"):
                await lost(first.id)
        with pytest.raises(openai.BadRequestError, match="is kept") as lost_one:
            await client.responses.create(**ASKED, previous_response_id=first.id)
        assert lost_one.value.param == "previous_response_id"
        assert lost_one.value.code == "previous_response_not_found"
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            await client.responses.cancel(second.id)


async def test_streamed_responses_are_kept_and_those_not_to_store_are_not(running: Running) -> None:
    streamed = (await events_of(running))[-1]["response"]
    assert (await running.http.get(f"{PATH}/{streamed['id']}")).json() == streamed
    private = (await running.http.post(PATH, json={**ASKED, "store": False})).json()
    assert private["store"] is False
    assert (await running.http.get(f"{PATH}/{private['id']}")).status_code == 404


async def test_responses_are_their_tenants_own(running: Running) -> None:
    kept = (await running.http.post(PATH, json=ASKED)).json()
    await running.gateway.tenancy.api_keys.ensure("other", "theirs", "sk-other-0123456789")
    headers = {"authorization": "Bearer sk-other-0123456789"}
    url = f"{PATH}/{kept['id']}"
    assert (await running.http.get(url, headers=headers)).status_code == 404
    assert (await running.http.delete(url, headers=headers)).status_code == 404
    assert (await running.http.get(url)).status_code == 200


async def test_formats_and_tool_choices_become_grammars(running: Running) -> None:
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    tools = {"tools": [WEATHER]}
    named = {"type": "function", "name": "weather"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    for fields, is_forced in (
        ({"text": {"format": {"type": "text"}}}, False),
        ({"text": {"format": {"type": "json_object"}}}, True),
        ({"text": {"format": schema}}, True),
        ({"tool_choice": "auto"}, False),
        ({**tools, "tool_choice": "none"}, False),
        ({**tools, "tool_choice": "required"}, True),
        ({**tools, "tool_choice": named}, True),
        ({**tools, "tool_choice": allowed}, True),
    ):
        answer = await running.http.post(PATH, json={**ASKED, **fields})
        assert answer.status_code == 200, answer.text
        assert bool(running.worker.requests[-1].sampling.grammar) is is_forced, fields
        for name, value in fields.items():
            assert answer.json()[name] == value


async def test_fields_of_chat_mean_what_they_mean_there(running: Running) -> None:
    fields: dict[str, Any] = {
        "top_k": 5, "min_p": 0.1, "seed": 7, "frequency_penalty": 0.5, "presence_penalty": 0.25,
        "repetition_penalty": 1.5, "logit_bias": {"70": 1}, "stop": ["never"],
        "stop_token_ids": [71], "include_stop_str_in_output": True, "ignore_eos": True,
        "min_tokens": 2, "skip_special_tokens": False,
    }  # fmt: skip
    answer = await running.http.post(PATH, json={**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    assert "x-pagoda-ignored" not in answer.headers
    ours = running.worker.requests[-1].sampling
    await running.chat(**fields)
    assert ours == running.worker.requests[-1].sampling
    bound: dict[str, Any] = {"seed": 7, "structured_outputs": {"choice": ["yes", "no"]}}
    await running.http.post(PATH, json={**ASKED, **bound})
    ours = running.worker.requests[-1].sampling
    await running.chat(**bound)
    assert ours.grammar
    assert ours == running.worker.requests[-1].sampling


async def test_what_was_asked_is_said_again(running: Running) -> None:
    fields: dict[str, Any] = {
        "max_tool_calls": 2, "prompt_cache_key": "k", "safety_identifier": "s",
        "reasoning": {"effort": "low", "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "top_logprobs": 0,
    }  # fmt: skip
    answer = (await running.http.post(PATH, json={**ASKED, **fields})).json()
    assert {name: answer[name] for name in fields} == fields


async def test_reasoning_is_an_item_of_its_own(nats_common: Any, bus: Any, tmp_path: Any) -> None:
    template = TEMPLATE + "{# a model that writes </think> #}"
    folder = write_model_folder(tmp_path / "thinks", chat_template=template)
    worker = says(bus, folder, "<think>\nhm\n</think>\n\nyes")
    async with running_gateway(nats_common, bus, folder, worker) as running:
        events = await events_of(running, max_output_tokens=60)
        chat = (await running.chat(max_tokens=60)).json()
        silent = (await running.chat(max_tokens=60, include_reasoning=False)).json()
        streamed = await running.events(
            max_tokens=60, include_reasoning=False, stream_options={"include_usage": True}
        )
    num_thoughts = len("\nhm\n")  # a letter is a token here
    usage = events[-1]["response"]["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": num_thoughts}
    for whole in (chat, silent, streamed[-1]):
        assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_thoughts}
    assert chat["choices"][0]["message"]["reasoning_content"].strip() == "hm"
    assert "reasoning_content" not in silent["choices"][0]["message"]
    assert silent["choices"][0]["message"]["content"] == "yes"
    assert not any("reasoning_content" in str(chunk) for chunk in streamed)
    thought, said = events[-1]["response"]["output"]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert thought["content"][0]["text"].strip() == "hm"
    assert said["content"][0]["text"] == "yes"
    kinds = [event["type"] for event in events]
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")


async def test_log_probabilities_of_the_text(nats_common: Any, bus: Any, tmp_path: Any) -> None:
    template = TEMPLATE + "{# a model that writes </think> #}"
    folder = write_model_folder(tmp_path / "thinks", chat_template=template)
    worker = says(bus, folder, "<think>\nhm\n</think>\n\nh\u00e9, yes")
    asked: Any = {**ASKED, "max_output_tokens": 90, "include": ["message.output_text.logprobs"]}
    async with (
        running_gateway(nats_common, bus, folder, worker) as running,
        running.sdk() as client,
    ):
        whole = await client.responses.create(**asked, top_logprobs=2)
        found = await client.responses.retrieve(whole.id)
        events = [e async for e in await client.responses.create(**asked, stream=True)]
        silent = await client.responses.create(**{**asked, "include": []})
    assert whole.top_logprobs == 2
    assert found.output == whole.output
    assert not part_of(silent).logprobs
    part = part_of(whole)
    assert part.text == "h\u00e9, yes"
    assert part.logprobs
    assert b"".join(bytes(entry.bytes) for entry in part.logprobs).decode() == part.text
    assert [len(entry.top_logprobs) for entry in part.logprobs] == [2] * len(part.logprobs)
    ended = part_of(events[-1].response)
    names = [entry.token for entry in ended.logprobs]
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    (done,) = [e for e in events if e.type == "response.output_text.done"]
    assert [entry.token for delta in deltas for entry in delta.logprobs] == names
    assert [entry.token for entry in done.logprobs] == names
    assert names == [entry.token for entry in part.logprobs]
    assert [entry.top_logprobs for entry in ended.logprobs] == [[]] * len(names)


def part_of(response: Any) -> Any:
    """Return the text of a response's message."""
    return response.output[-1].content[0]


async def test_a_stream_that_fails_says_so(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker, max_attempts=1) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(events_of(running))
        await running.tokens_arrived(3, delivered=True)  # it has begun: no status 500
        worker.fail("broken")
    events = asking.result()
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "poet", "content": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "function_call"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"tools": [{"type": "file_search"}]}, "file_search"),
        ({"tools": [{"type": "function"}]}, "'tools[0].name'"),
        ({"tools": [WEATHER, {**WEATHER, "name": ""}]}, "'tools[1].name'"),
        ({"tools": [WEATHER, WEATHER]}, "'tools[1].name'"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "text' is required"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "'x'"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
            "'text.format.schema'",
        ),
        ({"truncation": "middle"}, "truncation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"min_tokens": 9}, "max_output_tokens 8"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        (
            {
                "structured_outputs": {"regex": "a"},
                "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}},
            },
            "'text.format.schema' and 'structured_outputs.regex' exclude each other",
        ),
        ({"logit_bias": {"9999": 1}}, "9999"),
        ({"seed": 2**63}, str(2**63 - 1)),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "json"}}]}, "lark"),
        ({"prompt": {"id": "pmpt"}}, "prompt"),
    ],
)
async def test_bad_bodies(running: Running, fields: dict[str, Any], named: str) -> None:
    answer = await running.http.post(PATH, json={**ASKED, **fields})
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert not running.worker.requests


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
        {"type": "allowed_tools", "mode": "maybe", "tools": [{"type": "function", "name": "x"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "mcp"},
    ],
)
@pytest.mark.parametrize("tools", [[WEATHER], [{**WEATHER, "name": 5}]])
async def test_a_wrong_tool_choice_is_shown_as_it_was_sent(
    running: Running, choice: dict[str, Any], tools: list[Any]
) -> None:
    answer = await running.http.post(PATH, json={**ASKED, "tools": tools, "tool_choice": choice})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert f"not {choice}" in message
    assert '{"type": "function", "name": ...}' in message


async def test_a_strict_function_takes_an_object(running: Running) -> None:
    tool = {**WEATHER, "parameters": {"type": "string"}, "strict": True}
    answer = await running.http.post(PATH, json={**ASKED, "tools": [tool]})
    assert answer.status_code == 400
    assert "(tools[0]): 'type' at the top is 'string'" in answer.json()["error"]["message"]


async def test_chat_and_responses_make_the_same_prompt(running: Running) -> None:
    answer = (await running.http.post(PATH, json=ASKED)).json()
    chat = (await running.chat(**CHAT)).json()
    assert answer["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


async def test_input_tokens_are_counted_as_they_are_used(running: Running) -> None:
    async with running.sdk() as client:
        first = await client.responses.create(**ASKED)
        count = await client.responses.input_tokens.count(model="tiny", input=ASKED["input"])
        assert count.object == "response.input_tokens"
        assert first.usage is not None
        assert count.input_tokens == first.usage.input_tokens
        assert first.usage.input_tokens_details.cache_write_tokens == 0
        fields: Any = {"input": "and then?", "instructions": "brief", "tools": [WEATHER]}
        fields |= {"model": "tiny", "previous_response_id": first.id}
        second = await client.responses.create(**fields, max_output_tokens=4)
        count = await client.responses.input_tokens.count(**fields)
        assert second.usage is not None
        assert count.input_tokens == second.usage.input_tokens > first.usage.input_tokens
        with pytest.raises(openai.NotFoundError):
            await client.responses.input_tokens.count(model="gpt-9", input="x")


async def test_a_context_that_is_too_long_names_the_input(running: Running) -> None:
    limit = running.gateway.catalog.get("tiny").max_model_len
    for text in ("x" * limit, "x" * 100 * limit):
        answer = await running.http.post(PATH, json={**ASKED, "input": text})
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert answer.json()["error"]["param"] == "input", len(text)


async def test_a_conversation_that_is_too_long_goes_without_its_oldest_turns(
    running: Running,
) -> None:
    limit = running.gateway.catalog.get("tiny").max_model_len
    words = [chr(97 + i) * 90 for i in range(8)]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    items: list[dict[str, Any]] = [{"role": "developer", "content": "brief"}]
    for word in words:
        items += [{"role": "user", "content": word}, call, result]
    body = {**ASKED, "input": items, "instructions": "only once"}
    assert (await running.http.post(PATH, json=body)).status_code == 400
    answer = (await running.http.post(PATH, json={**body, "truncation": "auto"})).json()
    count = await running.http.post(
        f"{PATH}/input_tokens", json={"model": "tiny", **body, "truncation": "auto"}
    )
    prompt = await running.prompt_text()
    assert answer["truncation"] == "auto"
    assert count.json()["input_tokens"] == answer["usage"]["input_tokens"] <= limit - 8
    kept = [word for word in words if word in prompt]
    assert 1 <= len(kept) < len(words)
    assert kept == words[-len(kept) :]
    assert prompt.startswith(
        "<|bos|><|system|>only once<|end|><|system|>brief<|end|><|user|>" + kept[0]
    )
    assert limit - 8 - answer["usage"]["input_tokens"] < 90 + 100  # no turn more would fit
    page = await running.http.get(f"{PATH}/{answer['id']}/input_items?limit=100")
    assert len(page.json()["data"]) == len(items)


async def test_a_last_turn_that_is_too_long_is_refused_all_the_same(running: Running) -> None:
    limit = running.gateway.catalog.get("tiny").max_model_len
    for text in ("x" * limit, "x" * 100 * limit):
        items = [{"role": "user", "content": "hello"}, {"role": "user", "content": text}]
        body = {**ASKED, "input": items, "truncation": "auto"}
        answer = await running.http.post(PATH, json=body)
        assert answer.json()["error"]["code"] == "context_length_exceeded", len(text)
