"""Reasoning of the Responses API for clients that read a summary, or send back what is sealed."""

from typing import Any

import pytest
from support.running_gateway import running_gateway, says
from support.tiny_tokenizer import TEMPLATE, write_model_folder

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PATH = "/v1/responses"
ASKED: dict[str, Any] = {"model": "tiny", "input": "hello world"}


async def test_reasoning_is_where_clients_look_and_comes_back_sealed(
    nats_common: Any, bus: Any, tmp_path: Any
) -> None:
    """Some read a summary alone, and send back what is encrypted alone."""
    shown = "{% for m in messages if m.reasoning_content %}[{{ m.reasoning_content }}]{% endfor %}"
    template = TEMPLATE + "{# a model that writes </think> #}" + shown
    folder = write_model_folder(tmp_path / "thinks", chat_template=template)
    worker = says(bus, folder, "<think>\nhm\n</think>\n\nyes")
    asked: Any = {
        **ASKED, "max_output_tokens": 60, "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
    }  # fmt: skip
    async with (
        running_gateway(nats_common, bus, folder, worker) as running,
        running.sdk() as client,
    ):
        whole = await client.responses.create(**asked, store=False)
        async with client.responses.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        plain = await client.responses.create(**{**asked, "reasoning": {}, "include": []})
        thought = whole.output[0].model_dump()
        for name, other in (("summary", "encrypted_content"), ("encrypted_content", "summary")):
            sent = {**thought, other: [] if other == "summary" else None}
            assert sent[name]
            said = {"role": "assistant", "content": "yes"}
            items = [sent, said, {"role": "user", "content": "x"}]
            await running.http.post(PATH, json={**ASKED, "input": items})
            assert "[\nhm\n]" in await running.prompt_text()
        bad = await running.http.post(
            PATH, json={**asked, "reasoning": {"summary": 5, "effort": 6}}
        )
    for response in (whole, final):
        thinking, said = response.output
        assert thinking.summary[0].text.strip() == "hm"
        assert not thinking.content
        assert thinking.encrypted_content == thought["encrypted_content"]
        assert said.content[0].text == "yes"
    assert whole.reasoning.summary == "auto"
    of_thoughts = [kind for kind in dict.fromkeys(kinds) if "reasoning" in kind]
    assert of_thoughts == [
        "response.reasoning_summary_part.added", "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done", "response.reasoning_summary_part.done",
    ]  # fmt: skip
    assert plain.output[0].content[0].text == thinking.summary[0].text
    assert plain.output[0].encrypted_content is None
    for name in ("effort", "summary"):
        assert f"'reasoning.{name}' is " in bad.json()["error"]["message"]
