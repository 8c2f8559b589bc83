"""Anthropic's Messages API, with its official client, against a scripted worker."""

from typing import Any

import anthropic
import orjson
import pytest
from support.running_gateway import API_KEY, Running, Start, running_gateway, says
from support.scripted_worker import ScriptedWorker
from support.tiny_tokenizer import TEMPLATE, byte_level_tokenizer, write_model_folder
from tokenizers import AddedToken

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PATH = "/v1/messages"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "hello world"}],
}
GREEDY = {"temperature": 0}  # no field of the newest client's methods
WEATHER: Any = {
    "name": "weather",
    "description": "Of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = 'Look:<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def client_of(running: Running) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=running.url, api_key=API_KEY, max_retries=0)


async def events_of(running: Running, **fields: Any) -> list[dict[str, Any]]:
    """Return a stream's events; checks the framing."""
    answer = await running.http.post(PATH, json={**ASKED, **fields, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


async def test_a_message_and_its_usage(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, cached=4)) as running, client_of(running) as client:
        message = await client.messages.create(**ASKED)
        count = await client.messages.count_tokens(model="tiny", messages=ASKED["messages"])
        receipt = await running.http.get(f"/v1/receipts/{message.id.removeprefix('msg_')}")
    assert message.type == "message"
    assert message.stop_reason == "max_tokens"
    (block,) = message.content
    assert block.type == "text"
    assert len(block.text) == 8
    usage = message.usage
    assert (usage.cache_read_input_tokens, usage.output_tokens) == (4, 8)
    assert usage.input_tokens + 4 == count.input_tokens
    assert (receipt.json()["endpoint"], receipt.json()["output_tokens"]) == ("messages", 8)


async def test_a_stream_is_the_whole_message(running: Running) -> None:
    async with client_of(running) as client:
        whole = await client.messages.create(**ASKED, extra_body=GREEDY)
        async with client.messages.stream(**ASKED, extra_body=GREEDY) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)


async def test_events_in_their_order(running: Running) -> None:
    events = await events_of(running, temperature=0)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["output_tokens"] == 0
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 8


async def test_system_blocks_history_and_results_reach_the_template(running: Running) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
    found = {"type": "tool_reference", "tool_name": "thermometer"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("warm"), found]}
    count = await running.http.post(
        f"{PATH}/count_tokens",
        json={
            "model": "tiny",
            "system": [text("be brief"), text("be kind")],
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [text("b"), use]},
                {"role": "user", "content": [result, text("c")]},
            ],
            "tools": [WEATHER],
        },
    )
    call = {
        "id": "toolu_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    said = [text("warm"), text("thermometer")]
    same = await running.http.post(
        "/tokenize",
        json={
            "messages": [
                {"role": "system", "content": "be brief\nbe kind"},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "tool_calls": [call]},
                {"role": "tool", "content": said, "tool_call_id": "toolu_1"},
                {"role": "user", "content": "c"},
            ],
            "tools": [{"type": "function", "function": {"name": "weather"}}],
        },
    )
    assert count.json() == {"input_tokens": same.json()["count"]}


async def test_an_answer_that_the_client_has_begun_is_continued(running: Running) -> None:
    begun = {"role": "assistant", "content": "So it"}
    await running.http.post(PATH, json={**ASKED, "messages": [*ASKED["messages"], begun]})
    prompt = list(running.worker.requests[-1].prompt_token_ids)
    assert (await running.gateway.texts["tiny"].prompts.text_of(prompt)).endswith(
        "<|assistant|>So it"
    )


async def test_sampling_and_stop_sequences(start: Start, bus: Any, model_folder: Any) -> None:
    worker = says(bus, model_folder, "one two three four")
    async with start(worker) as running, client_of(running) as client:
        message = await client.messages.create(
            **{**ASKED, "max_tokens": 60},
            extra_body={"temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 7},
            stop_sequences=[" th", "zz"],
            metadata={"user_id": "u"},
        )
        ended = await client.messages.create(**{**ASKED, "max_tokens": 60})
        sampling = worker.requests[0].sampling
    assert message.content[0].text == "one two"  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " th")
    assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)
    drawn = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
    assert drawn == (0.5, 3, 0.5, 7)


async def test_a_tool_is_used(start: Start, bus: Any, model_folder: Any) -> None:
    options = {**ASKED, "max_tokens": 200, "tools": [WEATHER]}
    async with start(says(bus, model_folder, CALL)) as running, client_of(running) as client:
        whole = await client.messages.create(**options)
        async with client.messages.stream(**options) as stream:
            final = await stream.get_final_message()
    for message in (whole, final):
        said, used = message.content
        assert said.type == "text"
        assert said.text == "Look:"
        assert used.type == "tool_use"
        assert (used.name, used.input) == ("weather", {"city": "Rome"})
        assert used.id.startswith("toolu_")
        assert message.stop_reason == "tool_use"


async def test_tool_choice_becomes_a_grammar(running: Running) -> None:
    for choice, is_forced in (
        ({"type": "any"}, True),
        ({"type": "tool", "name": "weather"}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, False),
        ({"type": "none"}, False),
    ):
        body = {**ASKED, "tools": [WEATHER], "tool_choice": choice}
        assert (await running.http.post(PATH, json=body)).status_code == 200
        assert bool(running.worker.requests[-1].sampling.grammar) is is_forced, choice


async def test_thinking_has_blocks_of_its_own(nats_common: Any, bus: Any, tmp_path: Any) -> None:
    template = TEMPLATE + "{# a model that writes </think> #}"
    folder = write_model_folder(tmp_path / "thinks", chat_template=template)
    worker = says(bus, folder, "<think>\nhm\n</think>\n\nyes")
    async with running_gateway(nats_common, bus, folder, worker) as running:
        body = {**ASKED, "max_tokens": 60, "thinking": {"type": "adaptive"}}
        whole = (await running.http.post(PATH, json=body)).json()
        events = await events_of(running, max_tokens=60, thinking={"type": "adaptive"})
        async with client_of(running) as client, client.messages.stream(**body) as stream:
            final = await stream.get_final_message()
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    kinds = list(dict.fromkeys(delta["type"] for delta in deltas))
    assert kinds == ["thinking_delta", "signature_delta", "text_delta"]
    assert {"type": "signature_delta", "signature": ""} in deltas
    thought, said = whole["content"]
    assert thought == {"type": "thinking", "thinking": thought["thinking"], "signature": ""}
    assert thought["thinking"].strip() == "hm"
    assert said == {"type": "text", "text": "yes"}
    assert [block.model_dump(exclude_none=True) for block in final.content] == whole["content"]


async def test_thinking_is_counted_and_left_out_where_nobody_wants_it(
    nats_common: Any, bus: Any, tmp_path: Any
) -> None:
    template = TEMPLATE + "{# a model that writes </think> #}"
    folder = write_model_folder(tmp_path / "thinks", chat_template=template)
    worker = says(bus, folder, "<think>\nhm\n</think>\n\nyes")
    async with running_gateway(nats_common, bus, folder, worker) as running:
        omitted = {"thinking": {"type": "adaptive", "display": "omitted"}}
        body = {**ASKED, "max_tokens": 60, **omitted}
        whole = (await running.http.post(PATH, json=body)).json()
        events = await events_of(running, max_tokens=60, **omitted)
    details = {"thinking_tokens": len("\nhm\n")}
    assert whole["content"] == [{"type": "text", "text": "yes"}]
    assert whole["usage"]["output_tokens_details"] == details
    assert events[-2]["usage"]["output_tokens_details"] == details
    assert not any(event.get("content_block", {}).get("type") == "thinking" for event in events)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "."),
        ({"thinking": {"type": "enabled"}}, "True."),
        ({"thinking": {"type": "disabled"}}, "False."),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, ".high"),
    ],
)
async def test_what_is_asked_of_thinking_is_for_the_template(
    nats_common: Any, bus: Any, tmp_path: Any, fields: dict[str, Any], shown: str
) -> None:
    template = "{{ enable_thinking }}.{{ reasoning_effort }}"
    folder = write_model_folder(tmp_path / "tiny", chat_template=template)
    async with running_gateway(nats_common, bus, folder, ScriptedWorker(bus)) as running:
        await running.http.post(PATH, json={**ASKED, **fields})
        prompt = list(running.worker.requests[-1].prompt_token_ids)
        text = await running.gateway.texts["tiny"].prompts.text_of(prompt)
    assert text == shown


async def test_a_budget_of_thinking_is_held_where_its_end_is_a_token(
    nats_common: Any, bus: Any, tmp_path: Any
) -> None:
    template = TEMPLATE + "{# a model that writes </think> #}"
    body = {**ASKED, "thinking": {"type": "enabled", "budget_tokens": 5}}
    for marks, ignored in (([], "thinking.budget_tokens"), (["<think>", "</think>"], None)):
        tokenizer = byte_level_tokenizer()
        tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
        folder = write_model_folder(tmp_path / "m", tokenizer, chat_template=template)
        worker = ScriptedWorker(bus)
        async with running_gateway(nats_common, bus, folder, worker) as running:
            message = await running.http.post(PATH, json=body)
            chat = await running.chat(thinking_token_budget=5)
            bad = await running.chat(thinking_token_budget=-1)
        assert message.headers.get("x-pagoda-ignored") == ignored
        assert ("x-pagoda-ignored" in chat.headers) is (ignored is not None)
        grammars = [request.sampling.grammar for request in worker.requests]
        assert ["max_tokens=5" in grammar for grammar in grammars] == [ignored is None] * 2
        assert bad.json()["error"]["param"] == "thinking_token_budget"


async def test_a_silent_stream_is_pinged(start: Start, bus: Any) -> None:
    worker, body = ScriptedWorker(bus, gate_index=0), {**ASKED, "stream": True}
    async with (
        start(worker, keepalive_seconds=0.01) as running,
        running.http.stream("POST", PATH, json=body) as answer,
    ):
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(2)] == ["event: ping", 'data: {"type":"ping"}']
        worker.open_gate()
        assert 'data: {"type":"message_stop"}' in [line async for line in lines]


async def test_a_stream_that_fails_says_so(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker, max_attempts=1) as running, client_of(running) as client:
        stream = await client.messages.create(**ASKED, stream=True)  # it has begun: no status 500
        request_id = stream.response.headers["request-id"]
        worker.fail("broken")
        with pytest.raises(anthropic.APIStatusError) as caught:
            [event async for event in stream]
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    assert caught.value.body["request_id"] == request_id  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 10**6}, "512"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "web_search_20250305"),
        ({"tools": [WEATHER, {"type": "bash_2025"}]}, "'tools[1]' has type 'bash_2025'"),
        ({"tools": [{"name": ""}, {"type": "x"}]}, "'tools[1]' has type 'x'"),
        ({"tools": [WEATHER, WEATHER]}, "'tools[1].name'"),
        (
            {"tools": [{**WEATHER, "input_schema": {"type": "objekt"}, "strict": True}]},
            "(tools[0]): 'type' at the top is 'objekt'",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "'x'"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)
async def test_bad_bodies(running: Running, fields: dict[str, Any], named: str) -> None:
    answer = await running.http.post(PATH, json={**ASKED, **fields})
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert named in answer.json()["error"]["message"]
    assert not running.worker.requests


async def test_errors_become_the_clients_own_types(running: Running) -> None:
    async with client_of(running) as client:
        with pytest.raises(anthropic.NotFoundError, match="gpt-9"):
            await client.messages.create(**{**ASKED, "model": "gpt-9"})
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await client.with_options(api_key="sk-wrong").messages.create(**ASKED)
    assert caught.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    wrong_method = await running.http.get(PATH)
    assert wrong_method.status_code == 405
    assert wrong_method.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("own", [{}, {"x-request-id": "mine"}])
@pytest.mark.parametrize("fields", [{"model": "gpt-9"}, {"max_tokens": 0}, {"max_tokens": 10**6}])
async def test_an_error_says_the_requests_id_as_the_header_does(
    running: Running, fields: dict[str, Any], own: dict[str, str]
) -> None:
    for answer in (
        await running.http.post(PATH, json={**ASKED, **fields}, headers=own),
        await running.http.post(PATH, json=ASKED, headers={**own, "authorization": "Bearer x"}),
        await running.http.get(PATH, headers=own),
    ):
        assert answer.json()["type"] == "error"
        assert answer.json()["request_id"] == answer.headers["request-id"]
        assert answer.json()["request_id"] == own.get("x-request-id", answer.json()["request_id"])


async def test_an_answer_must_follow_a_schema(running: Running) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    body = {**ASKED, "output_config": {"format": form}}
    assert (await running.http.post(PATH, json=body)).status_code == 200
    assert running.worker.requests[-1].sampling.grammar
    running.worker.requests.clear()
    await running.http.post(PATH, json={**ASKED, "output_format": form})  # its former name
    assert running.worker.requests[-1].sampling.grammar
    form["schema"] = {"not": {}}
    refused = await running.http.post(PATH, json=body)
    assert refused.status_code == 400
    assert "'output_config.format.schema'" in refused.json()["error"]["message"]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


async def test_ids_of_requests_are_where_the_client_looks(running: Running) -> None:
    async with client_of(running) as client:
        message = await client.messages.create(**ASKED)
        assert message._request_id == message.id.removeprefix("msg_")
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.messages.create(**{**ASKED, "model": "gpt-9"})
        assert caught.value.request_id
        own = await client.messages.with_raw_response.create(
            **ASKED, extra_headers={"x-request-id": "mine"}
        )
        assert own.headers["request-id"] == "mine"
    assert "request-id" not in (await running.chat()).headers


async def test_a_context_that_is_too_long_is_said_in_words_that_clients_read(
    running: Running,
) -> None:
    limit = running.gateway.catalog.get("tiny").max_model_len
    async with client_of(running) as client:
        long = [{"role": "user", "content": "x" * limit}]
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: ") as caught:
            await client.messages.create(**{**ASKED, "messages": long})
        assert f" tokens > {limit} maximum" in str(caught.value)
        with pytest.raises(
            anthropic.BadRequestError,
            match=rf"exceed context limit: \d+ \+ {limit} > {limit}, decrease input",
        ):
            await client.messages.create(**{**ASKED, "max_tokens": limit})
        huge = [{"role": "user", "content": "x" * 100 * limit}]
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
            await client.messages.create(**{**ASKED, "messages": huge})


async def test_models_are_anthropics_too(running: Running) -> None:
    async with client_of(running) as client:
        page = await client.models.list()
        assert [model.id async for model in page] == ["tiny"]
        assert (page.first_id, page.last_id, page.has_more) == ("tiny", "tiny", False)
        (model,) = page.data
        assert (model.type, model.display_name) == ("model", "tiny")
        assert (model.max_input_tokens, model.max_tokens) == (512, 512)
        assert model.lifecycle == "active"
        assert model == await client.models.retrieve("tiny")
        assert model.created_at.timestamp() > 0
        with pytest.raises(anthropic.NotFoundError, match="does not exist here") as caught:
            await client.models.retrieve("nope")
        assert caught.value.type == "not_found_error"
        assert caught.value.request_id
    assert "type" not in (await running.http.get("/v1/models/nope")).json()


async def test_a_thread_is_refused_as_clients_understand(running: Running) -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    for path in (PATH, f"{PATH}/count_tokens"):
        answer = await running.http.post(path, json={**ASKED, "thread": thread})
        assert answer.status_code == 400
        assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert (await running.http.post(PATH, json={**ASKED, "thread": None})).status_code == 200


async def test_a_runner_of_tools_goes_on_without_threads(
    start: Start, bus: Any, model_folder: Any
) -> None:
    called: list[str] = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Of a city."""
        called.append(city)
        return f"warm in {city}"

    async with start(says(bus, model_folder, CALL)) as running, client_of(running) as client:
        runner = client.beta.messages.tool_runner(
            model="tiny", max_tokens=200, tools=[weather], max_iterations=2,
            messages=[{"role": "user", "content": "how is Rome"}],
        )  # fmt: skip
        async for message in runner:
            assert message.stop_reason == "tool_use"
        prompt = await running.prompt_text()
    assert called[0] == "Rome"
    assert "how is Rome" in prompt
    assert "warm in Rome" in prompt
