"""System, messages and their blocks: from Anthropic's to the messages of a chat."""

from collections.abc import Sequence
from typing import Any

import orjson

from pagoda_gateway.anthropic.schemas import Turn
from pagoda_gateway.openai.schemas.messages import Message, Role


def chat_messages(system: Any, turns: Sequence[Turn]) -> list[Message]:
    """Return the conversation as a chat's messages."""
    messages = []
    if system:
        messages.append(_message("system", _texts(system)))
    for turn in turns:
        if turn.role == "assistant":
            messages.append(_assistant_message(turn.content))
        elif turn.role == "user":
            messages += _user_messages(turn.content)
        else:
            messages.append(_message("system", _texts(turn.content)))
    return messages


def _message(role: Role, content: Any, **fields: Any) -> Message:
    return Message.model_construct(role=role, content=content, **fields)


def _user_messages(content: Any) -> list[Message]:
    """Return a message for each result of a tool, and one for the texts between two of them."""
    messages: list[Message] = []
    texts: list[dict[str, str]] = []
    for block in _blocks(content):
        if block["type"] == "text":
            texts.append(_text(block))
            continue
        if texts:
            messages.append(_message("user", texts))
            texts = []
        result = _texts(block.get("content") or "")
        messages.append(_message("tool", result, tool_call_id=block["tool_use_id"]))
    if texts or not messages:
        messages.append(_message("user", texts))
    return messages


def _assistant_message(content: Any) -> Message:
    texts: list[dict[str, str]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in _blocks(content):
        match block["type"]:
            case "tool_use":
                arguments = orjson.dumps(block["input"]).decode()
                function = {"name": block["name"], "arguments": arguments}
                calls.append({"id": block["id"], "type": "function", "function": function})
            case "thinking":
                thoughts.append(block["thinking"])
            case "text":
                texts.append(_text(block))
            case _:
                pass  # redacted thinking, which nobody here can read
    return _message(
        "assistant",
        texts or "",
        tool_calls=calls or None,
        reasoning_content="\n".join(thoughts) or None,
    )


def _texts(content: Any) -> list[dict[str, str]]:
    return [_text(block) for block in _blocks(content)]


def _blocks(content: Any) -> list[dict[str, Any]]:
    """Return the blocks; text is one."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(block: dict[str, Any]) -> dict[str, str]:
    """Return a block as a chat has it; of a tool that a client has found, its name."""
    text = block["tool_name"] if block["type"] == "tool_reference" else block["text"]
    return {"type": "text", "text": text}
