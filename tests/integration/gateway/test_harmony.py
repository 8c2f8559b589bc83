"""gpt-oss' channels and calls over HTTP: what models are shown, and how their outputs are read."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.harmony_model import write_harmony_folder
from support.running_gateway import Running, running_gateway
from support.scripted_worker import ScriptedWorker, spell, tiny_card

from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    },
}
THOUGHT = "<|channel|>analysis<|message|>Where to?<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"where": "up"}<|call|>'
FINAL = "<|channel|>final<|message|>Up <there>.<|return|>"
HISTORY = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Where to?",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "look", "arguments": '{"where": "up"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "a bird"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_harmony_folder(tmp_path_factory.mktemp("model") / "harmony")


@pytest.fixture
def saying(nats_common: CommonSettings, bus: Bus, folder: Path) -> Any:
    """Start a gateway whose worker says this text; its last token ends it."""
    tokenizer = ModelTokenizer.load(folder)

    @contextlib.asynccontextmanager
    async def start(text: str) -> AsyncIterator[Running]:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        worker = ScriptedWorker(
            bus, card=tiny_card(vocab_size=tokenizer.vocab_size), token_at=spell(token_ids),
            step_seconds=0.002, eos_id=token_ids[-1],
        )  # fmt: skip
        async with running_gateway(nats_common, bus, folder, worker) as running:
            yield running

    return start


def prompt_of(running: Running, folder: Path) -> str:
    ids = running.worker.requests[-1].prompt_token_ids
    return ModelTokenizer.load(folder).decode(list(ids), skip_special_tokens=False)


async def test_a_call_is_read_whole_and_streamed(saying: Any, folder: Path) -> None:
    async with saying(THOUGHT + CALL) as running:
        options = {"tools": [LOOK], "max_tokens": 400}
        (choice,) = (await running.chat(**options)).json()["choices"]
        chunks = await running.events(**options)
        response = (
            await running.http.post(
                "/v1/responses",
                json={
                    "model": "tiny",
                    "input": "hello",
                    "tools": [{"type": "function", **LOOK["function"]}],
                },
            )
        ).json()
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["content"], message["reasoning_content"]) == (None, "Where to?")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"where": "up"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == "Where to?"
    assert "".join(d.get("content") or "" for d in deltas) == ""
    pieces = [piece for d in deltas for piece in d.get("tool_calls", ())]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"where": "up"}'
    assert len(pieces) > 3, "arguments come as they are written"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
    details = response["usage"]["output_tokens_details"]
    num_thoughts = len(ModelTokenizer.load(folder).encode("Where to?", add_special_tokens=False))
    assert details == {"reasoning_tokens": num_thoughts}
    assert response["output"][1]["arguments"] == '{"where": "up"}'


async def test_channels_are_told_apart_without_tools(saying: Any) -> None:
    async with saying(THOUGHT + FINAL) as running:
        (choice,) = (await running.chat(max_tokens=400)).json()["choices"]
        chunks = await running.events(max_tokens=400)
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "Up <there>."
    assert choice["message"]["reasoning_content"] == "Where to?"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == "Where to?"
    assert "".join(d.get("content") or "" for d in deltas) == "Up <there>."


async def test_a_history_is_shown_as_its_template_writes_it(saying: Any, folder: Path) -> None:
    async with saying(FINAL) as running:
        answer = await running.chat(messages=HISTORY, tools=[LOOK], reasoning_effort="high")
        assert answer.status_code == 200, answer.text
        shown = prompt_of(running, folder)
        said = [{**HISTORY[1], "content": "I look."}, HISTORY[2]]
        answer = await running.chat(messages=[HISTORY[0], *said])
        assert answer.status_code == 200, answer.text
        shown_said = prompt_of(running, folder)
        await running.http.post(
            "/v1/responses",
            json={"model": "tiny", "input": "hi", "reasoning": {"effort": "low"}},
        )
        shown_low = prompt_of(running, folder)
        wrong = await running.http.post(
            "/v1/responses", json={"model": "tiny", "input": "hi", "reasoning": {"effort": 3}}
        )
    called = (
        "<|start|>assistant to=functions.look<|channel|>commentary json<|message|>"
        '{"where": "up"}<|call|><|start|>functions.look to=assistant<|channel|>commentary'
        '<|message|>"a bird"<|end|><|start|>assistant'
    )
    begin = "<|start|>system<|message|>Reasoning: {}<|end|>"
    thought = "<|start|>assistant<|channel|>analysis<|message|>{}<|end|>"
    user = "<|start|>user<|message|>{}<|end|>"
    tools = "<|start|>developer<|message|>look // <|end|>"
    look = user.format("Look.")
    assert shown == begin.format("high") + tools + look + thought.format("Where to?") + called
    assert shown_said == begin.format("medium") + look + thought.format("I look.") + called
    assert shown_low == begin.format("low") + user.format("hi") + "<|start|>assistant"
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "reasoning.effort"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [LOOK], "tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"tools": [LOOK], "response_format": {"type": "json_object"}},
        {"tools": [{**LOOK, "function": {**LOOK["function"], "strict": True}}]},
    ],
)
async def test_workers_get_a_grammar_of_messages(saying: Any, fields: dict[str, Any]) -> None:
    async with saying(FINAL) as running:
        answer = await running.chat(**fields)
        assert answer.status_code == 200, answer.text
        grammar = json.loads(running.worker.requests[-1].sampling.grammar)
    assert '"analysis"' in grammar["grammars"][0]["lark_grammar"]
