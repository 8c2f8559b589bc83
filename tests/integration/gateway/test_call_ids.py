"""Calls of a model that takes ids of nine characters only, back and forth through each API."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.running_gateway import CHAT, Running, running_gateway
from support.scripted_worker import ScriptedWorker, spell
from support.servers import nats_server, settings_for
from support.tiny_tokenizer import EOS_ID, write_model_folder

from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
    "{% if m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}"
    "{% if call.id is not defined or call.id | length != 9 %}{{ raise_exception('bad id') }}"
    "{% endif %}{{ call.id }},{% endfor %}]{% endif %}{% if m.role == 'tool' %}"
    "{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('bad id') }}{% endif %}={{ m.tool_call_id }}{% endif %}{% endfor %}"
)
SAID = '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "f", "arguments": {"a": 1}}]'
NINE = re.compile(r"[A-Za-z0-9]{9}")
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mistral(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("mistral")
    model = write_model_folder(folder / "tiny", chat_template=TEMPLATE)
    ids = ModelTokenizer.load(model).encode(SAID, add_special_tokens=False)
    with nats_server(folder) as nats:
        common = settings_for(nats, home=Path(folder))
        async with Bus.connect(common, name="workers") as bus:
            worker = ScriptedWorker(bus, token_at=spell([*ids, EOS_ID]))
            async with running_gateway(common, bus, model, worker) as running:
                yield running


async def check_prompt(running: Running, ids: list[str]) -> None:
    """The template has taken these calls, and the results of both in the other order."""
    prompt = await running.prompt_text()
    assert f"[TOOL_CALLS][{ids[0]},{ids[1]},]" in prompt
    assert re.findall(r"=(\w+)", prompt) == ids[::-1]


async def test_in_chats(mistral: Running) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
    asked = {**CHAT, "max_tokens": 200, "tools": [tool]}
    async with mistral.sdk() as client:
        message = (await client.chat.completions.create(**asked)).choices[0].message
        stream = await client.chat.completions.create(**asked, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert (message.content, deltas[0].content) == (None, None)
        ids = [call.id for call in message.tool_calls or []]
        streamed = [call.id for delta in deltas for call in delta.tool_calls or [] if call.id]
        assert len({*ids, *streamed}) == 4
        assert all(NINE.fullmatch(call_id) for call_id in (*ids, *streamed))
        for sent in (ids, ["call_0123456789", "toolu_0123456789"]):  # also another server's
            calls = [
                {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}}
                for i in sent
            ]
            history: list[Any] = [
                *CHAT["messages"],
                {"role": "assistant", "content": None, "tool_calls": calls},
                *({"role": "tool", "tool_call_id": i, "content": "5"} for i in reversed(sent)),
            ]
            await client.chat.completions.create(**{**asked, "messages": history})
            prompt = await mistral.prompt_text()
            await check_prompt(mistral, re.findall(r"(\w{9}),", prompt))
            assert (sent == ids) == (f"{sent[0]},{sent[1]}," in prompt)


async def test_in_messages(mistral: Running) -> None:
    body: dict[str, Any] = {
        "model": "tiny", "max_tokens": 200, "messages": CHAT["messages"],
        "tools": [{"name": "f", "input_schema": PARAMETERS}],
    }  # fmt: skip
    content = (await mistral.http.post("/v1/messages", json=body)).json()["content"]
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    assert len(set(ids)) == 2
    assert all(map(NINE.fullmatch, ids))
    results = [{"type": "tool_result", "tool_use_id": i, "content": "5"} for i in reversed(ids)]
    history = [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    body["messages"] = [*body["messages"], *history]
    assert (await mistral.http.post("/v1/messages", json=body)).status_code == 200
    await check_prompt(mistral, ids)


async def test_in_responses(mistral: Running) -> None:
    tool: Any = {"type": "function", "name": "f", "parameters": PARAMETERS, "strict": None}
    async with mistral.sdk() as client:
        first = await client.responses.create(model="tiny", input="go", tools=[tool])
        ids = [item.call_id for item in first.output if item.type == "function_call"]
        assert len(set(ids)) == 2
        assert all(map(NINE.fullmatch, ids))
        await client.responses.create(
            model="tiny",
            previous_response_id=first.id,
            input=[
                {"type": "function_call_output", "call_id": i, "output": "5"} for i in reversed(ids)
            ],
        )
    await check_prompt(mistral, ids)
