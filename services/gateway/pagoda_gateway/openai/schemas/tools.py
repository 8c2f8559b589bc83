"""Tools and the choice among them: the fields `tools`, `tool_choice` and `parallel_tool_calls`.

Knows what OpenAI lets a client ask for. Knows nothing of how a model writes a call.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationInfo

from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError, joined, shorten
from pagoda_gateway.openai.schemas.custom_tools import CUSTOM, faults, function_of, is_free

MAX_NAME_CHARS = 256
MAX_NAMED_TOOLS = 16  # of those that are wrong
_TEXT, _OBJECT, _FLAG = (str, type(None)), (dict, type(None)), (bool, type(None))
_FUNCTION = (
    ("description", _TEXT, "text"),
    ("parameters", _OBJECT, "a JSON schema (an object)"),
    ("strict", _FLAG, "true or false"),
)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools a model may call, and whether it must.

    Attributes:
        offered: what the prompt names; None without tools.
        callable: those that may be called now.
        is_required: the output is calls, and nothing else.
        is_named: the client named the function; the answer then ends with "stop", as OpenAI's does.
        is_parallel: there may be several calls.
        places: of what is offered, in the request; empty: in `tools`, one after the other.
        texts: names of functions that stand for tools of free text.
        free: indices of those offered whose grammar binds nothing.
    """

    offered: list[dict[str, Any]] | None = None
    callable: tuple[dict[str, Any], ...] = ()
    is_required: bool = False
    is_named: bool = False
    is_parallel: bool = True
    places: Sequence[str] = ()
    texts: frozenset[str] = frozenset()
    free: tuple[int, ...] = ()

    @property
    def is_strict(self) -> bool:
        """Whether calls must follow their schemas even where none is required."""
        return any(tool["function"].get("strict") is True for tool in self.callable)

    @property
    def all_places(self) -> Sequence[str]:
        """The place of each that is offered."""
        return self.places or [f"tools[{index}]" for index in range(len(self.offered or ()))]


def tool_use(tools: list[dict[str, Any]] | None, choice: Any, parallel: bool | None) -> ToolUse:
    """Return what a body's `tools`, `tool_choice` and `parallel_tool_calls` mean.

    Raises:
        InvalidRequestError: names the field.
    """
    if not tools:
        is_sent = tools is not None and choice == "auto"  # some clients send both with none
        check_choice_among((), None if is_sent else choice)
        return ToolUse()
    found = by_name(tools)
    if choice == "none":
        return ToolUse()
    names, mode = _chosen(choice, found)
    texts = {name: tool[CUSTOM] for name, tool in found.items() if tool["type"] == CUSTOM}
    for name, custom in texts.items():
        found[name] = {"type": "function", "function": function_of(custom)}
    return ToolUse(
        offered=list(found.values()),
        callable=tuple(found[name] for name in names),
        is_required=mode != "auto",
        is_named=mode == "named",
        is_parallel=mode != "named" and parallel is not False,
        texts=frozenset(texts),
        free=tuple(i for i, name in enumerate(found) if name in texts and is_free(texts[name])),
    )


def function_tool(name: str, **fields: Any) -> dict[str, Any]:
    """Return a tool as `tools` has it; `fields` of the function that are None are left out."""
    return _tool("function", name, fields)


def custom_tool(name: str, **fields: Any) -> dict[str, Any]:
    """Return a tool of free text as `tools` has it; `fields` that are None are left out."""
    return _tool(CUSTOM, name, fields)


def _tool(kind: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in fields.items() if value is not None}
    return {"type": kind, kind: {"name": name, **known}}


def by_name(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tools by their names.

    Raises:
        InvalidRequestError: names what is wrong with each.
    """
    found: dict[str, dict[str, Any]] = {}
    wrong = []
    for index, tool in enumerate(tools):
        name = _good_name(tool)
        if name is None or name in found:
            wrong.append((f"tools[{index}]", tool))
        else:
            found[name] = tool
    if wrong:
        named = wrong[:MAX_NAMED_TOOLS]
        errors = [error for where, tool in named for error in _errors(where, tool)]
        if len(wrong) > MAX_NAMED_TOOLS:
            more = f"and {len(wrong) - MAX_NAMED_TOOLS} more of 'tools' are wrong"
            errors.append(InvalidRequestError(more))
        raise joined(errors)
    return found


def check_names(names: Sequence[str | None]) -> None:
    """Raise InvalidRequestError if tools that have their names themselves share some; names each.

    Of chat's tools, which have them a level below, see `by_name`.

    Args:
        names: None of a tool that has none, which is said elsewhere.
    """
    seen: set[str] = set()
    errors = []
    for index, name in enumerate(names):
        if name is None:
            continue
        if name in seen:
            errors.append(_wrong(f"tools[{index}].name", name, "there only once"))
        seen.add(name)
    if errors:
        raise joined(errors)


def names_in(tools: Sequence[Any]) -> list[str | None]:
    """Return the names that tools of a body have, wrong as they may be, for `check_names`."""
    names = [tool.get("name") if isinstance(tool, dict) else None for tool in tools]
    return [name if isinstance(name, str) else None for name in names]


OTHER_KIND = "this server runs no tools itself; offer function or custom, which the client runs"
"""Why a tool of any other type cannot be offered."""


def check_choice(choice: Any) -> None:
    """Raise InvalidRequestError unless it is a choice among some tools, which are not known."""
    _choice(choice)


def checked_tools(value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return a body's `tools`, for its validator; for what it raises see `by_name`."""
    if value:
        by_name(value)
    return value


def checked_choice(value: Any, info: ValidationInfo) -> Any:
    """Return a body's `tool_choice`, for its validator.

    Raises:
        InvalidRequestError: it is no choice among its `tools`.
    """
    if "tools" in info.data:
        tool_use(info.data["tools"], value, None)
    else:  # they are wrong themselves
        check_choice(value)
    return value


def is_choice(choice: Any) -> bool:
    """Return whether it is a choice among some tools, which are not known."""
    try:
        _choice(choice)
    except InvalidRequestError:
        return False
    return True


def check_choice_among(names: Collection[str], choice: Any) -> None:
    """Raise InvalidRequestError unless it is a choice among tools of these names, or of none."""
    if choice in (None, "none"):
        return
    if not names:
        raise InvalidRequestError("'tool_choice' needs 'tools'", param="tool_choice")
    _chosen(choice, names)


def _good_name(tool: dict[str, Any]) -> str | None:
    """Return the name of a tool; None: something is wrong with it."""
    kind = _kind(tool)
    described = tool.get(kind)
    if kind not in _FAULTS or not isinstance(described, dict) or _faults(kind, described):
        return None
    name: str = described["name"]
    return name


def _kind(tool: dict[str, Any]) -> str:
    kind = tool.get("type")
    return kind if isinstance(kind, str) else ""


def _faults(kind: str, described: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """Return field, value and what it must be of all that is wrong with a tool."""
    found = _FAULTS[kind](described)
    name = described.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
        found.insert(0, ("name", name, f"a text of 1 to {MAX_NAME_CHARS} characters"))
    return found


def _function_faults(function: dict[str, Any]) -> list[tuple[str, Any, str]]:
    return [
        (field, function[field], must_be)
        for field, kinds, must_be in _FUNCTION
        if not isinstance(function.get(field), kinds)
    ]


_FAULTS = {"function": _function_faults, CUSTOM: faults}
_SHOWN = {
    "function": '{"type": "function", "function": {"name": ..., "parameters": {...}}}',
    CUSTOM: '{"type": "custom", "custom": {"name": ..., "format": {...}}}',
}


def _errors(where: str, tool: dict[str, Any]) -> list[InvalidRequestError]:
    """Return all that is wrong with a tool; if nothing is, its name is another's, too."""
    kind = _kind(tool)
    if kind and kind not in _FAULTS:
        why = f"'{where}' has type {shorten(kind)}: {OTHER_KIND}"
        return [UnsupportedFieldError(why, param=where)]
    described = tool.get(kind)
    if not isinstance(described, dict):
        return [_wrong(where, tool, _SHOWN[kind or "function"])]
    wrong = _faults(kind, described) or [("name", described["name"], "there only once")]
    return [_wrong(f"{where}.{kind}.{field}", value, must_be) for field, value, must_be in wrong]


def _wrong(where: str, value: Any, must_be: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{where}' is {shorten(value)}; it must be {must_be}", param=where)


def _chosen(choice: Any, tools: Collection[str]) -> tuple[list[str], str]:
    """Return the names that may be called, and auto, required or named."""
    names, mode = _choice(choice)
    return (list(tools) if names is None else _known(names, tools)), mode


def _choice(choice: Any) -> tuple[list[str] | None, str]:
    """Return names, None being all, and auto, required or named."""
    if choice in (None, "none", "auto"):
        return None, "auto"
    if choice == "required":
        return None, "required"
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return [name], "named"
        case {"type": "custom", "custom": {"name": str(name)}}:
            return [name], "named"
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]},
        } if allowed and (names := _names(allowed)):
            return names, mode
    raise InvalidRequestError(
        "'tool_choice' must be none, auto, required, "
        '{"type": "function", "function": {"name": ...}} or allowed_tools, not '
        f"{shorten(choice)}",
        param="tool_choice",
    )


def _names(tools: list[Any]) -> list[str]:
    names = []
    for tool in tools:
        match tool:
            case (
                {"type": "function", "function": {"name": str(name)}}
                | {"type": "custom", "custom": {"name": str(name)}}
                | {"name": str(name)}
            ):
                names.append(name)
            case _:
                return []
    return names


def _known(names: list[str], tools: Collection[str]) -> list[str]:
    for name in names:
        if name not in tools:
            raise InvalidRequestError(
                f"'tool_choice' names {shorten(name)}, which is not in 'tools'",
                param="tool_choice",
            )
    return names
