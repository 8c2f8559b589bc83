"""What a chat template does with roles, tools and calls: found by rendering a few conversations.

Templates leave out what their authors did not think of, or raise; neither shows in advance.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.templates.shape import TemplateShape

_MARK, _OTHER = "quetzal", "ocelot"  # in no template
_NAME = "get_weather"
_CITY = {"type": "string", "description": "Its name."}
_PARAMETERS = {"type": "object", "properties": {"city": _CITY}, "required": ["city"]}
_FULL = {"name": _NAME, "description": "Of a city.", "parameters": _PARAMETERS}
_TOOLS = [{"type": "function", "function": _FULL}]
_BARE_TOOLS = [{"type": "function", "function": {"name": _NAME}}]


class Render(Protocol):
    """A template's rendering; raises InvalidRequestError where it raises."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str:
        """Return the text."""


@dataclass(frozen=True, slots=True)
class TemplateHabits:
    """What a template shows of a conversation; the defaults are those of one that shows all of it.

    Attributes:
        knows_developer: messages of the role developer.
        knows_system: messages of the role system.
        shows_tools: tools that are offered.
        needs_whole_tools: it raises where a tool has no description or no parameters.
        writes_calls: calls of an answer.
        one_call: of an answer's calls, no more than one.
        names_by_id: of calls the id and the arguments, but not the function's name.
        writes_results: messages of the role tool.
        one_system: of systems, or developers, at the beginning no more than one.
        knows_later_system: those behind what others said.
        hears_after_results: what a user says right after a result.
        takes_turns: it raises where a user says two things, one after the other.
        thinks_or_speaks: it raises where an answer with calls has both thoughts and text.
    """

    knows_developer: bool = True
    knows_system: bool = True
    shows_tools: bool = True
    needs_whole_tools: bool = False
    writes_calls: bool = True
    one_call: bool = False
    names_by_id: bool = False
    writes_results: bool = True
    one_system: bool = False
    knows_later_system: bool = True
    hears_after_results: bool = True
    takes_turns: bool = False
    thinks_or_speaks: bool = False


def template_habits(
    render: Render, shape: TemplateShape, *, has_developer: bool, is_for_tools: bool
) -> TemplateHabits:
    """Return what a template does.

    Args:
        render: the template.
        shape: of its messages.
        has_developer: its source has the word.
        is_for_tools: it is asked where tools are offered, and there alone.
    """
    always = _TOOLS if is_for_tools else None

    def shows(mark: str, *messages: dict[str, Any], tools: Any = always, other: str = "") -> bool:
        try:
            text = render(messages, tools=tools)
        except InvalidRequestError:
            return False
        return mark in text and other in text

    def message(role: str, text: str = "Hello", **fields: Any) -> dict[str, Any]:
        content = text if shape.content_text else [{"type": "text", "text": text}]
        return {"role": role, "content": content, **fields}

    user = message("user")
    if not shows("Hello", user):
        return TemplateHabits()  # it wants what nobody knows
    shows_tools = shows(_NAME, user, tools=_TOOLS)
    call, other = (_call(shape, i, mark) for i, mark in enumerate((_MARK, _OTHER)))
    first, second = (message("tool", tool_call_id=c["id"], name=_NAME) for c in (call, other))
    asked = message("assistant", "", tool_calls=[call])
    asked_twice = message("assistant", "", tool_calls=[call, other])
    writes_calls = shows(_MARK, user, asked, first)
    unlike = message("assistant", "", tool_calls=[_call(shape, 0, _MARK, name=_OTHER)])
    result = first | {"content": message("tool", _MARK)["content"]}
    answered = asked if writes_calls else message("assistant")
    knows_developer = has_developer and shows(_MARK, message("developer", _MARK), user)
    knows_system = shows(_MARK, message("system", _MARK), user)
    systems = ["system"] * knows_system + ["developer"] * knows_developer
    speaker = message("system", _MARK)
    talk = message("system", _OTHER), user, message("assistant")
    thoughtful = message("assistant", "Let me see.", tool_calls=[call], thinking=_MARK)
    return TemplateHabits(
        knows_developer=knows_developer,
        knows_system=knows_system,
        one_system=knows_system
        and not all(
            shows(_MARK, speaker, message(role, _OTHER), user, other=_OTHER) for role in systems
        ),
        knows_later_system=all(
            shows(_MARK, *talk, message(role, _MARK), user, other=_OTHER) for role in systems
        ),
        hears_after_results=shows(_MARK, user, answered, first, message("user", _MARK)),
        thinks_or_speaks=shape.thinking and not shows(_MARK, user, thoughtful, first),
        shows_tools=shows_tools,
        needs_whole_tools=shows_tools and not shows(_NAME, user, tools=_BARE_TOOLS),
        writes_calls=writes_calls,
        one_call=writes_calls and not shows(_OTHER, user, asked_twice, first, second),
        names_by_id=writes_calls
        and shows(_MARK, user, unlike, other=call["id"])
        and not shows(_MARK, user, unlike, other=_OTHER),
        writes_results=shows(_MARK, user, answered, result),
        takes_turns=not shows(_MARK, user, message("user", _MARK)),
    )


def _call(shape: TemplateShape, index: int, mark: str, name: str = _NAME) -> dict[str, Any]:
    arguments: Any = {"city": mark}
    if shape.arguments_text:
        arguments = json.dumps(arguments)
    num_chars = shape.call_id_chars or 9
    function = {"name": name, "arguments": arguments}
    return {"id": f"{index:0{num_chars}}", "type": "function", "function": function}
