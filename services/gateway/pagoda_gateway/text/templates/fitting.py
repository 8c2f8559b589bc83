"""Conversations as a template can show them: what it would leave out or refuse is said otherwise.

Calls, results and tools that a template does not write become text in the form that answers have.
What `TemplateHabits` does not ask for stays.
"""

import itertools
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pagoda_gateway.text.templates.call_texts import HERMES, CallTexts
from pagoda_gateway.text.templates.habits import TemplateHabits

Seen = dict[str, Any]
"""A message as the template gets it."""

_NO_PARAMETERS = {"type": "object", "properties": {}}
_APART = "\n\n"


def fitted_tools(tools: Sequence[Mapping[str, Any]], habits: TemplateHabits) -> list[Seen]:
    """Return tools that have all that the template reads."""
    if not habits.needs_whole_tools:
        return [dict(tool) for tool in tools]
    return [{**tool, "function": _whole(tool["function"])} for tool in tools]


def fitted_messages(
    messages: list[Seen],
    tools: Sequence[Mapping[str, Any]] | None,
    habits: TemplateHabits,
    texts: CallTexts = HERMES,
) -> list[Seen]:
    """Return a conversation in which tools are offered as the template can show it.

    `texts`: how calls and tools are said that it does not show.
    """
    if tools and not habits.shows_tools:
        messages = _with_system(texts.tools(tools), messages)
    if habits.names_by_id:
        messages = list(_with_names_in_ids(messages))
    if not habits.writes_calls:
        messages = [_said_calls(message, texts) for message in messages]
    if habits.one_call:
        messages = list(_one_call_at_once(messages))
    if not habits.writes_results:
        messages = [_said_result(message) for message in messages]
    messages = _fitted_systems(messages, habits)
    if not habits.hears_after_results:
        messages = list(_said_with_results(messages))
    if habits.takes_turns:
        messages = [_joined(turn) for turn in _turns(messages)]
    return messages


def _whole(function: Seen) -> Seen:
    return {
        **function,
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or _NO_PARAMETERS,
    }


def _with_system(text: str, messages: list[Seen]) -> list[Seen]:
    if messages and messages[0]["role"] in ("system", "developer"):
        return [_longer(messages[0], after=_APART + text), *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_names_in_ids(messages: Iterable[Seen]) -> Iterator[Seen]:
    """Yield messages whose calls have ids that name their functions and count, as Kimi's have.

    Their results have them, too. Where calls of one answer share an id, each has one result.
    """
    ids: dict[Any, deque[str]] = {}
    count = itertools.count()
    for message in messages:
        calls = message.get("tool_calls") or []
        named = [{**c, "id": f"functions.{c['function']['name']}:{next(count)}"} for c in calls]
        ids |= {call.get("id"): deque[str]() for call in calls}
        for call, with_name in zip(calls, named, strict=True):
            ids[call.get("id")].append(with_name["id"])
        if named:
            yield {**message, "tool_calls": named}
        elif _is_result(message) and (own := ids.get(message.get("tool_call_id"))):
            yield {**message, "tool_call_id": own[0] if len(own) == 1 else own.popleft()}
        else:
            yield message


def _said_calls(message: Seen, texts: CallTexts) -> Seen:
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = texts.calls([_called(call["function"]) for call in calls])
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return _longer(others, after="\n" * _has_text(message) + text)


def _called(function: Seen) -> Seen:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return {"name": function["name"], "arguments": arguments}


def _one_call_at_once(messages: list[Seen]) -> Iterator[Seen]:
    """Yield each call in a message of its own, before its results."""
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            yield message
            continue
        results = list(itertools.takewhile(_is_result, messages[at:]))
        at += len(results)
        own = _results_of(calls, results)
        for i, call in enumerate(calls):
            alone = message if i == 0 else {"role": message["role"], "content": _emptied(message)}
            yield {**alone, "tool_calls": [call]}
            yield from own[i]
        yield from own[-1]


def _results_of(calls: Sequence[Seen], results: Iterable[Seen]) -> list[list[Seen]]:
    """Return each call's results, and at last those of no call.

    A call has those with its id; where several calls have one id, or none, they have one each.
    """
    places = defaultdict[Any, deque[int]](deque)
    for i, call in enumerate(calls):
        places[call.get("id")].append(i)
    found: list[list[Seen]] = [[] for _ in range(len(calls) + 1)]
    for result in results:
        own = places.get(result.get("tool_call_id"))
        if not own:
            found[-1].append(result)
        else:
            found[own[0] if len(own) == 1 else own.popleft()].append(result)
    return found


def _is_result(message: Seen) -> bool:
    return bool(message["role"] == "tool")


def _is_system(message: Seen) -> bool:
    return message["role"] in ("system", "developer")


def _said_result(message: Seen) -> Seen:
    """Return a result as what the user says."""
    if not _is_result(message):
        return message
    said = _longer(message, before="<tool_response>\n", after="\n</tool_response>")
    return {"role": "user", "content": said["content"]}


def _fitted_systems(messages: list[Seen], habits: TemplateHabits) -> list[Seen]:
    """Return a conversation whose systems speak where the template lets them."""
    first = list(itertools.takewhile(_is_system, messages))
    later = messages[len(first) :]
    if not habits.knows_system:
        return list(_asked_by_user(messages))
    if not habits.knows_later_system:
        later = list(_asked_by_user(later))
    if habits.one_system and len(first) > 1:
        first = [{**_joined(first), "role": first[0]["role"]}]
    return [*first, *later]


def _asked_by_user(messages: Iterable[Seen]) -> Iterator[Seen]:
    """Yield what systems say as the beginning of what the user says next."""
    asked: list[Seen] = []
    for message in messages:
        if _is_system(message):
            asked.append({**message, "role": "user"})
        elif message["role"] == "user":
            yield _joined([*asked, message])
            asked = []
        else:
            if asked:
                yield _joined(asked)
            asked = []
            yield message
    if asked:
        yield _joined(asked)


def _said_with_results(messages: Iterable[Seen]) -> Iterator[Seen]:
    """Yield what a user says right after results as the end of the last of them."""
    result: Seen | None = None
    said: list[Seen] = []
    for message in messages:
        if result is not None and message["role"] == "user":
            said.append(message)
            continue
        if result is not None:
            yield {**result, "content": _joined([result, *said])["content"]}
        result, said = (message, []) if _is_result(message) else (None, [])
        if result is None:
            yield message
    if result is not None:
        yield {**result, "content": _joined([result, *said])["content"]}


def _turns(messages: list[Seen]) -> Iterator[list[Seen]]:
    """Yield messages, those together that one side says without a call or a result between."""
    turn: list[Seen] = []
    for message in messages:
        goes_on = bool(turn) and turn[-1]["role"] == message["role"]
        if goes_on and not _is_result(message) and not turn[-1].get("tool_calls"):
            turn.append(message)
            continue
        if turn:
            yield turn
        turn = [message]
    if turn:
        yield turn


def _joined(messages: Sequence[Seen]) -> Seen:
    """Return the last message after the contents of the others."""
    if len(messages) == 1:
        return messages[0]
    contents = [message["content"] for message in messages]
    if all(isinstance(content, str) for content in contents):
        return {**messages[-1], "content": _APART.join(contents)}
    parts = [part for content in contents for part in _parts(content)]
    return {**messages[-1], "content": parts}


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
