"""Policies in a running gateway: what is refused, replaced, cut short, and what it costs."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from support.running_gateway import CHAT, Running, Start, says, text_of
from support.scripted_worker import ScriptedWorker, spell
from support.tiny_tokenizer import EOS_ID

from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

RULES = r"""
policies:
  - name: other
    tenants: [somebody-else]
    rules:
      - {name: everything, action: block, deny: ['.']}
  - name: house
    tenants: [default]
    models: [tiny]
    rules:
      - {name: swearing, action: block, deny: ['damn'], allow: ['damn yankees']}
      - {name: cards, action: redact, deny: ['\b\d{4}-\d{4}\b'], replacement: '[card]'}
      - {name: money, action: flag, deny: ['dollar']}
"""
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "safety.yaml"
    path.write_text(RULES)
    return path


HI: dict[str, Any] = {"role": "user", "content": "hi"}


def called(arguments: str) -> dict[str, Any]:
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "c", "content": "ok"}
    return {"messages": [HI, {"role": "assistant", "tool_calls": [call]}, result], "max_tokens": 20}


def asked(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 200, **fields}


async def test_a_refused_prompt_reaches_no_worker(start: Start, rules: Path) -> None:
    async with start(safety_file=rules) as running:
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/v1/chat/completions", asked("well, damn")),
            ("/v1/chat/completions", asked("hi", tools=[
                {**WEATHER, "function": {**WEATHER["function"], "description": "DAMN good"}}])),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
                {"type": "text", "text": "da"}, {"type": "text", "text": "mn"}]}]}),
            ("/v1/chat/completions", asked("hi", tools=[{**WEATHER, "function": {
                "name": "w", "parameters": {"type": "object", "examples": [1, "damn"]}}}])),
            ("/v1/chat/completions", called('{"a": "d\\u0061mn"}')),
            ("/v1/messages", {**asked(""), "messages": [HI, {"role": "assistant", "content": [
                {"type": "tool_use", "id": "a", "name": "f", "input": {"a": [1, "damn"]}}]}]}),
            ("/v1/responses", {"max_output_tokens": 20, "input": [HI, {
                "type": "function_call", "call_id": "c", "name": "f",
                "arguments": '{"a": "d\\u0061mn"}'}]}),
            ("/v1/completions", {"prompt": ["fine", "damn"]}),
            ("/v1/completions", {"prompt": running.gateway.texts["tiny"].prompts.tokenizer.encode(
                "so damn", add_special_tokens=False)}),
            ("/v1/embeddings", {"input": "damn"}),
            ("/v1/messages", {**asked("damn")}),
            ("/v1/responses", {"input": "damn", "max_output_tokens": 20}),
            ("/v1/chat/completions", {**asked("hi"), "reasoning_effort": "damn"}),
            ("/v1/responses", {"input": "hi", "reasoning": {"effort": "damn"}}),
            ("/v1/messages", {**asked("hi"), "output_config": {"effort": "damn"}}),
        ]  # fmt: skip
        refused = []
        for path, body in bodies:
            answer = await running.http.post(path, json={"model": "tiny", **body})
            assert answer.status_code == 400, (path, answer.text)
            error = answer.json()["error"]
            assert "rule 'swearing' of the policy 'house'" in error["message"]
            assert "damn" not in answer.text.lower()
            if path != "/v1/messages":
                assert error["code"] == "content_policy_violation"
                is_tool = "tools" in body
                assert (error["param"] == "tools") == is_tool
                assert is_tool or error["param"] in ("messages", "prompt", "input")
            refused.append(f"/v1/receipts/{answer.headers['x-request-id']}")
        assert running.worker.requests == []
        good = await running.chat(**asked("the damn yankees won"))
        assert good.status_code == 200
        assert (await running.receipt(good))["status"] == "closed"  # what came before is there too
        with running.receipts_waiting(0):
            found = [await running.http.get(path) for path in refused]
        assert [receipt.status_code for receipt in found] == [404] * len(bodies)  # nothing to pay


async def test_a_prompt_is_redacted_before_the_model_sees_it(start: Start, rules: Path) -> None:
    async with start(safety_file=rules) as running:
        tokenizer = running.gateway.texts["tiny"].prompts.tokenizer
        secret = "my card is 1234-5678, 10 dollars"
        for send in (
            lambda: running.completion(prompt=secret, echo=True, max_tokens=2),
            lambda: running.chat(**asked(secret)),
        ):
            answer = await send()
            assert answer.status_code == 200, answer.text
            sent = running.worker.requests[-1].prompt_token_ids
            seen = tokenizer.decode(list(sent), skip_special_tokens=False)
            assert "my card is [card], 10 dollars" in seen
            assert "1234" not in seen + answer.text
            receipt = await running.receipt(answer)
            assert sorted(receipt["safety_findings"]) == [
                "house/cards redact input",
                "house/money flag input",
            ]
        ids = tokenizer.encode(secret, add_special_tokens=False)
        assert (await running.completion(prompt=ids)).status_code == 400


async def test_a_call_of_the_history_is_redacted_as_it_is_read(start: Start, rules: Path) -> None:
    async with start(safety_file=rules) as running:
        answer = await running.chat(**called('{"a": "\\u0031234-5678", "b": "\\u00e9"}'))
        assert answer.status_code == 200, answer.text
        seen = await running.prompt_text()
        assert "[card]" in seen
        assert "\u00e9" in seen
        assert "5678" not in seen
        split = [{"type": "text", "text": "1234-"}, {"type": "text", "text": "5678"}]
        for refused in (
            {"messages": [{"role": "user", "content": split}]},
            called('{"1234-5678": 1}'),
        ):
            answer = await running.chat(**refused)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "content_policy_violation"


@pytest.mark.parametrize("side", ["left", "right"])
async def test_what_is_left_of_a_cut_prompt_is_looked_at(
    start: Start, rules: Path, side: str
) -> None:
    async with start(safety_file=rules) as running:
        tokenizer = running.gateway.texts["tiny"].prompts.tokenizer
        text = "damn yankees"
        lost = tokenizer.encode(" yankees", add_special_tokens=False)
        num = len(tokenizer.encode(text, add_special_tokens=False))
        cut: dict[str, Any] = {"truncation_side": side, "add_special_tokens": False}
        for body in (
            {"prompt": text, **cut},
            {"prompt": tokenizer.encode(text, add_special_tokens=False), **cut},
        ):
            whole = await running.completion(**body, truncate_prompt_tokens=num)
            assert whole.status_code == 200, whole.text
            less = await running.completion(**body, truncate_prompt_tokens=num - len(lost))
            assert less.status_code == (400 if side == "right" else 200), less.text
        cut["truncate_prompt_tokens"] = num - len(lost)
        embedded = await running.http.post(
            "/v1/embeddings", json={"model": "tiny", "input": text, **cut}
        )
        assert embedded.status_code == (400 if side == "right" else 200), embedded.text


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_ends_before_what_is_denied(
    start: Start, bus: Bus, model_folder: Path, rules: Path, n: int
) -> None:
    text = "well dam, Damn it, and on it goes for ever" * 3
    async with start(
        says(bus, model_folder, text, step_seconds=0.001), safety_file=rules
    ) as running:
        chunks = await running.events(**asked("hi", n=n, stream_options={"include_usage": True}))
        async with asyncio.timeout(60):
            while len(running.worker.cancels) < n:  # noqa: ASYNC110  (its bus owns the event)
                await asyncio.sleep(0.01)
        receipts = await running.http.get(f"/v1/receipts/{chunks[0]['id']}")
    for index in range(n):
        assert text_of(chunks, index) == "well dam, "
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["content_filter"] * n
    assert {cancel.reason for cancel in running.worker.cancels} == {"content_filter"}
    receipt = receipts.json()
    assert receipt["finish_reasons"] == ["content_filter"] * n
    assert receipt["output_tokens"] == chunks[-1]["usage"]["completion_tokens"] < 20 * n
    assert receipt["outcome"] == "finished"
    assert sorted(receipt["safety_findings"]) == ["house/swearing block output"]


async def test_what_a_stream_brings_is_what_a_whole_answer_has(
    start: Start, bus: Bus, model_folder: Path, rules: Path
) -> None:
    text = "pay 1234-5678 or 12345-678, 1111-2222-3 dollars 4321-8765"
    expected = "pay [card] or 12345-678, [card]-3 dollars [card]"
    async with start(says(bus, model_folder, text), safety_file=rules) as running:
        whole = (await running.chat(**asked("hi"))).json()
        chunks = await running.events(**asked("hi"))
        prompt = {"prompt": "hi", "max_tokens": 200}
        plain = (await running.completion(**prompt)).json()
        events = await running.events("/v1/completions", **prompt)
        message = await running.http.post("/v1/messages", json={"model": "tiny", **asked("hi")})
        response = await running.http.post(
            "/v1/responses", json={"model": "tiny", "input": "hi", "max_output_tokens": 200}
        )
    assert whole["choices"][0]["message"]["content"] == expected
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert text_of(chunks) == expected
    assert plain["choices"][0]["text"] == expected
    assert "".join(e["choices"][0]["text"] for e in events) == expected
    assert message.json()["content"] == [{"type": "text", "text": expected}]
    assert response.json()["output"][0]["content"][0]["text"] == expected


async def test_each_api_says_that_an_answer_was_cut(
    start: Start, bus: Bus, model_folder: Path, rules: Path
) -> None:
    async with start(says(bus, model_folder, "oh damn it"), safety_file=rules) as running:
        whole = (await running.chat(**asked("hi"))).json()
        plain = (await running.completion(prompt="hi", max_tokens=99)).json()
        message = await running.http.post("/v1/messages", json={"model": "tiny", **asked("hi")})
        response = await running.http.post(
            "/v1/responses", json={"model": "tiny", "input": "hi", "max_output_tokens": 99}
        )
        stop = (await running.completion(prompt="hi", max_tokens=99, stop=["amn"])).json()
    assert whole["choices"][0]["finish_reason"] == "content_filter"
    assert whole["choices"][0]["message"]["content"] == "oh "
    assert (
        plain["choices"][0] | {"text": "oh ", "finish_reason": "content_filter"}
        == plain["choices"][0]
    )
    assert message.json()["stop_reason"] == "refusal"
    assert response.json()["status"] == "incomplete"
    assert response.json()["incomplete_details"] == {"reason": "content_filter"}
    assert stop["choices"][0]["text"] == "oh d"
    assert stop["choices"][0]["finish_reason"] == "stop"


async def test_what_is_echoed_makes_no_match_with_what_follows(
    start: Start, bus: Bus, model_folder: Path, rules: Path
) -> None:
    said = {"role": "assistant", "content": "well da"}
    go_on = {"messages": [HI, said], "continue_final_message": True, "echo": True}
    async with start(says(bus, model_folder, "mn it"), safety_file=rules) as running:
        plain = (await running.completion(prompt="well da", echo=True, max_tokens=20)).json()
        whole = (await running.chat(**go_on, max_tokens=20)).json()
        chunks = await running.events(**go_on, max_tokens=20)
        alone = (await running.completion(prompt="well da", max_tokens=20)).json()
    assert plain["choices"][0]["text"] == "well da"
    assert plain["choices"][0]["finish_reason"] == "content_filter"
    assert whole["choices"][0]["message"]["content"] == "well da"
    assert text_of(chunks) == "well da"
    assert alone["choices"][0]["text"] == "mn it"  # what a model writes has no match


async def test_calls_of_tools_are_filtered(
    start: Start, bus: Bus, model_folder: Path, rules: Path
) -> None:
    arguments = '{"q": "1234-5678 d\\u0061mn yankees"}'
    call = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    worker = says(bus, model_folder, "Look: 1234-5678" + call)
    async with start(worker, safety_file=rules) as running:
        whole = (await running.chat(**asked("hi", tools=[WEATHER]))).json()
        chunks = await running.events(**asked("hi", tools=[WEATHER]))
    message = whole["choices"][0]["message"]
    assert message["content"] == "Look: [card]"
    assert orjson.loads(message["tool_calls"][0]["function"]["arguments"]) == {
        "q": "[card] damn yankees"
    }
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    pieces = [
        call["function"]["arguments"]
        for chunk in chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert "".join(pieces) == message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('<tool_call>\n{"name": "damn", "arguments": {}}\n</tool_call>', ""),
        ('ok <tool_call>\n{"name": "damn", "arguments": {}}\n</tool_call>', "ok "),
        ("ok \U0001f600damn", "ok \U0001f600"),  # several tokens
        ("\u65e5\u672c\u8a9edamn", "\u65e5\u672c\u8a9e"),
        ("ab <damn", "ab <"),  # may become a mark
        ("ab <tooldamn", "ab <tool"),
    ],
)
async def test_what_was_shown_before_something_refused_is_billed_and_nothing_else(
    start: Start, bus: Bus, model_folder: Path, rules: Path, text: str, shown: str
) -> None:
    async with start(says(bus, model_folder, text), safety_file=rules) as running:
        whole = (await running.chat(**asked("hi", tools=[WEATHER]))).json()
        options = {"include_usage": True}
        chunks = await running.events(**asked("hi", tools=[WEATHER], stream_options=options))
    (choice,) = whole["choices"]
    assert (choice["message"]["content"] or "") == shown
    assert choice["finish_reason"] == "content_filter"
    num_shown = len(ModelTokenizer.load(model_folder).encode(shown, add_special_tokens=False))
    assert whole["usage"]["completion_tokens"] == num_shown
    assert chunks[-1]["usage"] == whole["usage"]


async def test_calls_that_take_a_text_are_filtered(
    start: Start, bus: Bus, model_folder: Path, rules: Path
) -> None:
    arguments = '{"input": "x\\\\u0041y 1234-5678\\n"}'
    call = f'<tool_call>\n{{"name": "patch", "arguments": {arguments}}}\n</tool_call>'
    expected = "x\\u0041y [card]\n"
    async with start(says(bus, model_folder, call), safety_file=rules) as running:
        tools = [{"type": "custom", "custom": {"name": "patch"}}]
        whole = (await running.chat(**asked("hi", tools=tools))).json()
        chunks = await running.events(**asked("hi", tools=tools))
        response = await running.http.post("/v1/responses", json={
            "model": "tiny", "input": "hi", "max_output_tokens": 200,
            "tools": [{"type": "custom", "name": "patch"}]})  # fmt: skip
    (choice,) = whole["choices"]
    (called,) = choice["message"]["tool_calls"]
    assert (called["type"], called["custom"]["input"]) == ("custom", expected)
    assert choice["finish_reason"] == "tool_calls"
    pieces = [
        call["custom"]["input"]
        for chunk in chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert "".join(pieces) == expected
    (item,) = response.json()["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", expected)
    assert item["status"] == "completed"


async def test_tokens_cannot_be_had_beside_a_text_that_is_held_back(
    start: Start, rules: Path
) -> None:
    async with start(safety_file=rules) as running:
        for fields in ({"logprobs": True}, {"return_token_ids": True}):
            answer = await running.chat(**fields)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "unsupported_parameter"
        assert (await running.completion(logprobs=1)).json()["error"]["param"] == "logprobs"


async def test_moderations_by_rules(start: Start, rules: Path) -> None:
    async with start(safety_file=rules) as running, running.sdk() as sdk:
        answer = await sdk.moderations.create(input=["damn 1111-2222", "fine"])
        one = await running.http.post("/v1/moderations", json={"input": "a dollar"})
        wrong = await running.http.post("/v1/moderations", json={"input": [1]})
    assert [result.flagged for result in answer.results] == [True, False]
    assert answer.results[0].categories.model_extra == {
        "swearing": True, "cards": True, "money": False,
    }  # fmt: skip
    assert one.json()["results"][0]["category_scores"] == {"swearing": 0, "cards": 0, "money": 1}
    assert one.json()["model"] == "house"
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "input[0]"


async def test_work_on_a_hostile_prompt_is_bounded(start: Start, rules: Path) -> None:
    async with start(safety_file=rules) as running:
        many = await running.completion(prompt="1234-5678 " * 20_000)
        flags = await running.completion(prompt="dollar " * 20_000)
        large = await running.http.post("/v1/moderations", json={"input": "x" * 300_000})
    assert many.status_code == 400
    assert "more than 2000 times" in many.json()["error"]["message"]
    assert "context length" in flags.json()["error"]["message"]  # a flag refuses nothing
    assert "the limit is 262144" in large.json()["error"]["message"]


async def test_without_a_policy_there_is_nothing_to_ask(running: Running) -> None:
    answer = await running.http.post("/v1/moderations", json={"input": "x"})
    assert answer.status_code == 404
    assert "PAGODA_GATEWAY_SAFETY_FILE" in answer.json()["error"]["message"]
    with pytest.raises(openai.NotFoundError):
        async with running.sdk() as sdk:
            await sdk.moderations.create(input="x")


async def test_a_line_of_a_batch_is_judged_too(start: Start, rules: Path) -> None:
    async with start(safety_file=rules) as running:
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
                "body": {**CHAT, **asked("damn")}}  # fmt: skip
        file = await running.http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", orjson.dumps(line))}
        )
        batch = await running.http.post("/v1/batches", json={
            "input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions",
            "completion_window": "24h"})  # fmt: skip
        ended = await _ended(running.http, batch.json()["id"])
        errors = await running.http.get(f"/v1/files/{ended['error_file_id']}/content")
    assert "content_policy_violation" in errors.text
    assert running.worker.requests == []


async def _ended(http: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await http.get(f"/v1/batches/{batch_id}")).json()
            if found["status"] in ("completed", "failed", "expired", "cancelled"):
                return found
            await asyncio.sleep(0.02)  # it runs in the background


async def test_who_leaves_pays_for_no_token_that_was_held_back(
    start: Start, bus: Bus, model_folder: Path, rules: Path
) -> None:
    tokenizer = ModelTokenizer.load(model_folder)
    before = tokenizer.encode("good morning ", add_special_tokens=False)
    held = tokenizer.encode("1234-567", add_special_tokens=False)  # all but a card's last digit
    assert len(held) > 1
    ids = [*before, *held]
    worker = ScriptedWorker(bus, token_at=spell([*ids, EOS_ID]), gate_index=len(ids))
    async with start(worker, safety_file=rules) as running:
        body = {"model": "tiny", **asked("hi", stream=True)}
        async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            await running.tokens_arrived(len(ids))
            lines = answer.aiter_lines()
            text = ""
            while text != "good morning ":
                line = await anext(lines)
                if line.startswith("data: "):
                    text += orjson.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        await worker.wait_until(lambda: bool(worker.cancels))
        assert await running.gateway.admission.drain(60)
        receipt = await running.receipt(answer)
    assert receipt["outcome"] == "disconnected"
    assert receipt["output_tokens"] == len(before)
