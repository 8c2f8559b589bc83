"""Conversations as a template can show them: what it would leave out or refuse is said otherwise.

Calls, results and tools that a template does not write become text in Hermes' format, by which
models without a format of their own are read. What `TemplateHabits` does not ask for stays.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pagoda_gateway.text.templates.habits import TemplateHabits

Seen = dict[str, Any]
"""A message as the template gets it."""

_NO_PARAMETERS = {"type": "object", "properties": {}}
_APART = "\n\n"


def fitted_tools(tools: Sequence[Seen], habits: TemplateHabits) -> list[Seen]:
    """Return tools that have all that the template reads."""
    if not habits.needs_whole_tools:
        return list(tools)
    return [{**tool, "function": _whole(tool["function"])} for tool in tools]


def fitted_messages(
    messages: list[Seen], tools: Sequence[Seen] | None, habits: TemplateHabits
) -> list[Seen]:
    """Return a conversation in which tools are offered as the template can show it."""
    if tools and not habits.shows_tools:
        messages = _with_system(_tools_text(tools), messages)
    if not habits.writes_calls:
        messages = [_said_calls(message) for message in messages]
    if habits.one_call:
        messages = list(_one_call_at_once(messages))
    if not habits.writes_results:
        messages = list(_said_results(messages))
    if not habits.knows_system:
        messages = list(_asked_by_user(messages))
    if habits.takes_turns:
        messages = list(_in_turns(messages))
    return messages


def _whole(function: Seen) -> Seen:
    return {
        **function,
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or _NO_PARAMETERS,
    }


def _tools_text(tools: Sequence[Seen]) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"These functions can be called:\n<tools>\n{lines}\n</tools>\n"
        "A call is one JSON object within its tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <object>}\n</tool_call>'
    )


def _with_system(text: str, messages: list[Seen]) -> list[Seen]:
    if messages and messages[0]["role"] in ("system", "developer"):
        return [_longer(messages[0], after=_APART + text), *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _said_calls(message: Seen) -> Seen:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [
        f"<tool_call>\n{json.dumps(_called(call['function']), ensure_ascii=False)}\n</tool_call>"
        for call in calls
    ]
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    between = "\n" if _has_text(message) else ""
    return _longer(others, after=between + "\n".join(texts))


def _called(function: Seen) -> Seen:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return {"name": function["name"], "arguments": arguments}


def _one_call_at_once(messages: list[Seen]) -> Iterable[Seen]:
    """Yield each call in a message of its own, before its results."""
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            yield message
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results, at = messages[at:end], end
        for i, call in enumerate(calls):
            alone = message if i == 0 else {"role": message["role"], "content": _emptied(message)}
            yield {**alone, "tool_calls": [call]}
            own = [r for r in results if r.get("tool_call_id") == call.get("id")]
            own = own or results[:1]  # without ids they are in the calls' order
            yield from own
            results = [r for r in results if all(r is not taken for taken in own)]
        yield from results


def _said_results(messages: list[Seen]) -> Iterable[Seen]:
    """Yield results as what the user says."""
    for message in messages:
        if message["role"] != "tool":
            yield message
            continue
        said = _longer(message, before="<tool_response>\n", after="\n</tool_response>")
        yield {"role": "user", "content": said["content"]}


def _asked_by_user(messages: list[Seen]) -> Iterable[Seen]:
    """Yield what the system says as the beginning of what the user says next."""
    asked: Seen | None = None
    for message in messages:
        if message["role"] == "system":
            said = {**message, "role": "user"}
            asked = said if asked is None else _joined(asked, said)
        elif asked is not None and message["role"] == "user":
            yield _joined(asked, message)
            asked = None
        else:
            if asked is not None:
                yield asked
            asked = None
            yield message
    if asked is not None:
        yield asked


def _in_turns(messages: list[Seen]) -> Iterable[Seen]:
    """Yield what a user says in one turn as one message."""
    last: Seen | None = None
    for message in messages:
        if last is not None and last["role"] == message["role"] == "user":
            last = _joined(last, message)
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def _joined(first: Seen, second: Seen) -> Seen:
    """Return the second message after the first one's content."""
    if isinstance(first["content"], str) and isinstance(second["content"], str):
        return {**second, "content": first["content"] + _APART + second["content"]}
    return {**second, "content": [*_parts(first["content"]), *_parts(second["content"])]}


def _longer(message: Seen, *, before: str = "", after: str = "") -> Seen:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": before + content + after}
    return {**message, "content": [*_parts(before), *content, *_parts(after)]}


def _parts(content: Any) -> list[Seen]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content)


def _emptied(message: Seen) -> Any:
    return "" if isinstance(message["content"], str) else []


def _has_text(message: Seen) -> bool:
    content = message["content"]
    return bool(content if isinstance(content, str) else any(part["text"] for part in content))
