"""System, messages and their blocks: from Anthropic's to the messages of a chat."""

from collections.abc import Sequence
from typing import Any

import orjson

from pagoda_gateway.anthropic.schemas import Turn
from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.openai.schemas.messages import Message, Role


def chat_messages(system: Any, turns: Sequence[Turn]) -> list[Message]:
    """Return the conversation as a chat's messages.

    Raises:
        InvalidRequestError: names the block that cannot be one, and what it may be.
    """
    messages = []
    if system:
        messages.append(_message("system", _texts("system", system)))
    for index, turn in enumerate(turns):
        where = f"messages[{index}].content"
        if turn.role == "assistant":
            messages.append(_assistant_message(where, turn.content))
        elif turn.role == "user":
            messages += _user_messages(where, turn.content)
        else:
            messages.append(_message("system", _texts(where, turn.content)))
    return messages


def _message(role: Role, content: Any, **fields: Any) -> Message:
    return Message.model_construct(role=role, content=content, **fields)


def _user_messages(where: str, content: Any) -> list[Message]:
    """Return a message for each result of a tool, and one for the texts between two of them."""
    messages: list[Message] = []
    texts: list[dict[str, str]] = []
    for place, block in _blocks(where, content):
        match block:
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                if texts:
                    messages.append(_message("user", texts))
                    texts = []
                result = _texts(f"{place}.content", block.get("content") or "")
                messages.append(_message("tool", result, tool_call_id=call_id))
            case _:
                texts.append(_text(place, block))
    if texts or not messages:
        messages.append(_message("user", texts))
    return messages


def _assistant_message(where: str, content: Any) -> Message:
    texts: list[dict[str, str]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for place, block in _blocks(where, content):
        match block:
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(values)}:
                function = {"name": name, "arguments": orjson.dumps(values).decode()}
                calls.append({"id": call_id, "type": "function", "function": function})
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "redacted_thinking"}:
                pass  # nobody here can read it
            case _:
                texts.append(_text(place, block))
    return _message(
        "assistant",
        texts or "",
        tool_calls=calls or None,
        reasoning_content="\n".join(thoughts) or None,
    )


def _texts(where: str, content: Any) -> list[dict[str, str]]:
    return [_text(place, block) for place, block in _blocks(where, content)]


def _blocks(where: str, content: Any) -> list[tuple[str, Any]]:
    """Return the blocks with their names in errors; text is one block."""
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if isinstance(content, list):
        return [(f"{where}[{i}]", block) for i, block in enumerate(content)]
    raise InvalidRequestError(
        f"'{where}' must be text or a list of blocks, not {shorten(content)}", param=where
    )


def _text(where: str, block: Any) -> dict[str, str]:
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
    kind = block.get("type") if isinstance(block, dict) else None
    raise InvalidRequestError(
        f"'{where}' has type {shorten(kind)} or lacks a field of it; this model takes blocks of "
        "type text and, from an assistant, tool_use (id, name, input) and thinking, from a user, "
        "tool_result (tool_use_id, content)",
        param=where,
    )
