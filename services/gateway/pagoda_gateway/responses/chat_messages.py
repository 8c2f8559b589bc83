"""Items of input: from the Responses API's to the messages of a chat."""

from collections.abc import Sequence
from typing import Any

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.openai.schemas.messages import Message, wrong_text

ROLES = ("user", "assistant", "system", "developer")
_TEXT_FIELDS = {
    "input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal",
}  # fmt: skip


def input_items(sent: Any) -> list[Any]:
    """Return a body's `input` as items.

    Raises:
        InvalidRequestError: it is neither text nor a list.
    """
    if isinstance(sent, str):
        return [{"type": "message", "role": "user", "content": sent}]
    if isinstance(sent, list) and sent:
        return sent
    raise InvalidRequestError(
        f"'input' must be text or a list of items (not empty), not {shorten(sent)}", param="input"
    )


def chat_messages(
    instructions: str | None, items: Sequence[Any], *, num_previous: int, field: str = "input"
) -> list[Message]:
    """Return items as a chat's messages.

    Args:
        instructions: what comes before all of them.
        items: of the conversation so far.
        num_previous: so many of them are not this request's.
        field: of the body that has the others.

    Raises:
        InvalidRequestError: names the item that cannot be one, and what it may be.
    """
    messages: list[dict[str, Any]] = []
    thoughts: list[str] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for index, item in enumerate(items):
        _add(messages, thoughts, f"{field}[{index - num_previous}]", item)
    return [Message.model_construct(**message) for message in messages]


def _add(messages: list[dict[str, Any]], thoughts: list[str], where: str, item: Any) -> None:
    """Add an item to the messages; `thoughts` are for the assistant's next one."""
    match item:
        case {"type": "reasoning"}:
            thoughts += _thoughts(item)
            return
        case {"type": "function_call", "call_id": str(), "name": str(), "arguments": str()}:
            _add_call(messages, item, is_new=bool(thoughts))
        case {"type": "function_call_output", "call_id": str(call_id), "output": output}:
            content = _texts(f"{where}.output", output)
            messages.append({"role": "tool", "content": content, "tool_call_id": call_id})
        case {"role": str(role), "content": content} if (
            role in ROLES and item.get("type", "message") == "message"
        ):
            messages.append({"role": role, "content": _texts(f"{where}.content", content)})
        case _:
            kind = item.get("type") if isinstance(item, dict) else item
            raise InvalidRequestError(
                f"'{where}' has type {shorten(kind)} or lacks a field of it; this server takes "
                f"message (role: {', '.join(ROLES)}; content), function_call (call_id, name, "
                "arguments), function_call_output (call_id, output) and reasoning",
                param=where,
            )
    if thoughts and messages[-1]["role"] == "assistant":
        messages[-1]["reasoning_content"] = "\n".join(thoughts)
    thoughts.clear()  # those that no answer came of are nobody's


def _thoughts(item: dict[str, Any]) -> list[str]:
    """Return the texts of a reasoning item: of its content, or of what is left of it, a summary.

    What is encrypted nobody here can read.
    """
    for name in ("content", "summary"):
        parts = item.get(name)
        texts = [
            part["text"]
            for part in (parts if isinstance(parts, list) else [])
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        if texts:
            return texts
    return []


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], *, is_new: bool) -> None:
    """Add a call to the assistant's message before it, or to a new one.

    Calls of one answer stay together, unless it thought in between.
    """
    if is_new or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    function = {"name": item["name"], "arguments": item["arguments"]}
    call = {"id": item["call_id"], "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _texts(where: str, content: Any) -> Any:
    """Return text as it is, and parts as a chat has them."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return [_part(f"{where}[{i}]", part) for i, part in enumerate(content)]
    raise InvalidRequestError(
        f"'{where}' must be text or a list of parts, not {shorten(content)}", param=where
    )


def _part(where: str, part: Any) -> dict[str, str]:
    kind = part.get("type") if isinstance(part, dict) else None
    field = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    if field:
        text = part.get(field)
        if isinstance(text, str):
            return {"type": "text", "text": text}
        raise wrong_text(where, field, part)
    raise InvalidRequestError(
        f"'{where}' has type {shorten(kind)}; this model takes only text: input_text and "
        "output_text",
        param=where,
    )
