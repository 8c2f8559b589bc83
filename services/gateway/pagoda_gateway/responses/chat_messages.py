"""Items of input: what they may be, and how they become the messages of a chat."""

from collections.abc import Sequence
from typing import Any

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.openai.schemas.contents import check_content, check_each, check_text_part
from pagoda_gateway.openai.schemas.custom_tools import CUSTOM
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.responses.sealed_reasoning import unsealed
from pagoda_gateway.responses.tools import known_name

ROLES = ("user", "assistant", "system", "developer")
_TEXT_FIELDS = {
    "input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal",
}  # fmt: skip


def input_items(sent: Any) -> list[Any]:
    """Return a body's `input` as items.

    Raises:
        InvalidRequestError: it is neither text nor a list, or names the items that are wrong.
    """
    if isinstance(sent, str):
        return [{"type": "message", "role": "user", "content": sent}]
    if isinstance(sent, list) and sent:
        check_each("", sent, _check_input_item)
        return sent
    raise InvalidRequestError(
        f"'input' must be text or a list of items (not empty), not {shorten(sent)}", param="input"
    )


def _check_input_item(place: str, item: Any) -> None:
    match item:
        case {"type": "item_reference", "id": str()}:
            pass  # see references.py
        case _:
            check_item(place, item)


def check_item(place: str, item: Any) -> None:
    """Raise InvalidRequestError unless it is an item of a conversation."""
    match item:
        case {"type": "reasoning"}:
            pass  # of which what can be read is
        case {
            "type": "function_call",
            "call_id": str(),
            "name": str(name),
            "arguments": str(),
        } if name and isinstance(item.get("namespace"), str | None):
            pass
        case {
            "type": "custom_tool_call",
            "call_id": str(),
            "name": str(name),
            "input": str(),
        } if name and isinstance(item.get("namespace"), str | None):
            pass
        case {
            "type": "function_call_output" | "custom_tool_call_output",
            "call_id": str(),
            "output": output,
        }:
            check_content(f"{place}.output", output, _check_part)
        case {"role": str(role), "content": content} if (
            role in ROLES and item.get("type", "message") == "message"
        ):
            check_content(f"{place}.content", content, _check_part)
        case _:
            kind = item.get("type") if isinstance(item, dict) else item
            raise InvalidRequestError(
                f"has type {shorten(kind)} or lacks a field of it; this server takes message "
                f"(role: {', '.join(ROLES)}; content), function_call (call_id, name, arguments), "
                "custom_tool_call (call_id, name, input), function_call_output and "
                "custom_tool_call_output (call_id, output) and reasoning",
                param=place,
            )


def _check_part(place: str, part: Any) -> None:
    check_text_part(place, part, _TEXT_FIELDS, "input_text and output_text")


def chat_messages(instructions: str | None, items: Sequence[dict[str, Any]]) -> list[Message]:
    """Return items as a chat's messages, behind `instructions`."""
    messages: list[dict[str, Any]] = []
    thoughts: list[str] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        _add(messages, thoughts, item)
    return [Message.model_construct(**message) for message in messages]


def _add(messages: list[dict[str, Any]], thoughts: list[str], item: dict[str, Any]) -> None:
    """Add an item to the messages; `thoughts` are for the assistant's next one."""
    match item.get("type"):
        case "reasoning":
            thoughts += _thoughts(item)
            return
        case "function_call" | "custom_tool_call":
            _add_call(messages, item, is_new=bool(thoughts))
        case "function_call_output" | "custom_tool_call_output":
            content = _texts(item["output"])
            messages.append({"role": "tool", "content": content, "tool_call_id": item["call_id"]})
        case _:
            messages.append({"role": item["role"], "content": _texts(item["content"])})
    if thoughts and messages[-1]["role"] == "assistant":
        messages[-1]["reasoning_content"] = "\n".join(thoughts)
    thoughts.clear()  # those that no answer came of are nobody's


def _thoughts(item: dict[str, Any]) -> list[str]:
    """Return the texts of a reasoning item: of its content, or of what is left of it.

    What others have encrypted nobody here can read.
    """
    if texts := reasoning_texts(item.get("content")):
        return texts
    if text := unsealed(item.get("encrypted_content")):
        return [text]
    return reasoning_texts(item.get("summary"))


def reasoning_texts(parts: Any) -> list[str]:
    """Return the texts of reasoning's parts, which nobody has checked."""
    return [
        part["text"]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], *, is_new: bool) -> None:
    """Add a call to the assistant's message before it, or to a new one.

    Calls of one answer stay together, unless it thought in between.
    """
    if is_new or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    name = known_name(item.get("namespace"), item["name"])
    call: dict[str, Any] = {"id": item["call_id"]}
    if item["type"] == "custom_tool_call":
        call |= {"type": CUSTOM, CUSTOM: {"name": name, "input": item["input"]}}
    else:
        function = {"name": name, "arguments": item["arguments"]}
        call |= {"type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _texts(content: str | list[dict[str, Any]]) -> Any:
    """Return text as it is, and parts as a chat has them."""
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": part[_TEXT_FIELDS[part["type"]]]} for part in content]
