"""Items of the Responses API as messages: whose reasoning is whose."""

from typing import Any

from pagoda_gateway.responses.chat_messages import chat_messages
from pagoda_gateway.responses.sealed_reasoning import sealed

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "5"}
USER = {"role": "user", "content": "x"}


def thought(*texts: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, **fields}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def seen(*items: dict[str, Any]) -> list[tuple[str, str | None, int]]:
    """Return the role, reasoning and number of calls of each message."""
    return [
        (m.role, m.reasoning_content, len(m.tool_calls or [])) for m in chat_messages(None, items)
    ]


def test_reasoning_is_of_the_call_that_follows() -> None:
    found = seen(USER, thought("a", "b"), CALL, CALL, OUTPUT, thought("c"), said("5"))
    assert found == [
        ("user", None, 0), ("assistant", "a\nb", 2), ("tool", None, 0), ("assistant", "c", 0),
    ]  # fmt: skip


def test_a_call_after_text_is_of_its_message_unless_it_thought_between() -> None:
    assert seen(thought("a"), said("x"), CALL) == [("assistant", "a", 1)]
    assert seen(thought("a"), said("x"), thought("b"), CALL) == [
        ("assistant", "a", 0), ("assistant", "b", 1),
    ]  # fmt: skip


def test_a_summary_stands_for_content_that_is_not_there() -> None:
    summary = [{"type": "summary_text", "text": "s"}]
    for content in (None, []):
        item = thought(summary=summary, content=content, encrypted_content="xyz")
        assert seen(item, said("5")) == [("assistant", "s", 0)]


def test_a_sealed_copy_stands_for_content_that_is_not_there() -> None:
    text = "hm \u00e9\n"
    summary = [{"type": "summary_text", "text": "s"}]
    assert seen(thought(encrypted_content=sealed(text), summary=summary), said("5")) == [
        ("assistant", text, 0)
    ]
    assert seen(thought("a", encrypted_content=sealed(text)), said("5"))[0][1] == "a"
    broken = (f"{sealed(text)}*", f"x{sealed(text)}", "pagoda1.gICA", "pagoda1.\u00e9", "", 5)
    for copy in broken:
        assert seen(thought(encrypted_content=copy), said("5"))[0][1] is None


def test_reasoning_that_no_answer_came_of_is_left_out() -> None:
    assert seen(USER, thought("a"), USER, said("5")) == [
        ("user", None, 0), ("user", None, 0), ("assistant", None, 0),
    ]  # fmt: skip
    assert seen(USER, thought("a")) == [("user", None, 0)]
    assert seen(thought(), {"type": "reasoning", "summary": "s"}, said("5"))[0][1] is None
