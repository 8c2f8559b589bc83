"""Tools and the choice among them: the fields `tools`, `tool_choice` and `parallel_tool_calls`.

Knows what OpenAI lets a client ask for. Knows nothing of how a model writes a call.
"""

from dataclasses import dataclass
from typing import Any

from pagoda_gateway.errors import InvalidRequestError, shorten

MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools a model may call, and whether it must.

    Attributes:
        offered: what the prompt names; None without tools.
        callable: those that may be called now.
        is_required: the output is calls, and nothing else.
        is_named: the client named the function; the answer then ends with "stop", as OpenAI's does.
        is_parallel: there may be several calls.
    """

    offered: list[dict[str, Any]] | None = None
    callable: tuple[dict[str, Any], ...] = ()
    is_required: bool = False
    is_named: bool = False
    is_parallel: bool = True

    @property
    def is_strict(self) -> bool:
        """Whether calls must follow their schemas even where none is required."""
        return any(tool["function"].get("strict") is True for tool in self.callable)


def tool_use(tools: list[dict[str, Any]] | None, choice: Any, parallel: bool | None) -> ToolUse:
    """Return what a body's `tools`, `tool_choice` and `parallel_tool_calls` mean.

    Raises:
        InvalidRequestError: names the field.
    """
    if tools is None:
        if choice not in (None, "none"):
            raise InvalidRequestError("'tool_choice' needs 'tools'", param="tool_choice")
        return ToolUse()
    found = by_name(tools)
    if choice == "none":
        return ToolUse()
    names, mode = _chosen(choice, found)
    return ToolUse(
        offered=tools,
        callable=tuple(found[name] for name in names),
        is_required=mode != "auto",
        is_named=mode == "named",
        is_parallel=mode != "named" and parallel is not False,
    )


def function_tool(name: str, **fields: Any) -> dict[str, Any]:
    """Return a tool as `tools` has it; `fields` of the function that are None are left out."""
    known = {key: value for key, value in fields.items() if value is not None}
    return {"type": "function", "function": {"name": name, **known}}


def by_name(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tools by their functions' names.

    Raises:
        InvalidRequestError: one of them is none.
    """
    if not tools:
        raise InvalidRequestError("'tools' is empty; name one or leave it out", param="tools")
    found: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise InvalidRequestError(
                f"'{where}' must be "
                '{"type": "function", "function": {"name": ..., "parameters": {...}}}, not '
                f"{shorten(tool)}",
                param=where,
            )
        function = tool["function"]
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise InvalidRequestError(
                f"'{where}.function.name' is {shorten(name)}; it must be a text of 1 to "
                f"{MAX_NAME_CHARS} characters",
                param=f"{where}.function.name",
            )
        if parameters is not None and not isinstance(parameters, dict):
            raise InvalidRequestError(
                f"'{where}.function.parameters' must be a JSON schema (an object), not "
                f"{shorten(parameters)}",
                param=f"{where}.function.parameters",
            )
        if name in found:
            raise InvalidRequestError(
                f"'{where}.function.name' {shorten(name)} is there twice",
                param=f"{where}.function.name",
            )
        found[name] = tool
    return found


def _chosen(choice: Any, tools: dict[str, Any]) -> tuple[list[str], str]:
    """Return the names that may be called, and auto, required or named."""
    if choice in (None, "auto"):
        return list(tools), "auto"
    if choice == "required":
        return list(tools), "required"
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return _known([name], tools), "named"
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]},
        } if allowed and (names := _names(allowed)):
            return _known(names, tools), mode
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
            case {"type": "function", "function": {"name": str(name)}} | {"name": str(name)}:
                names.append(name)
            case _:
                return []
    return names


def _known(names: list[str], tools: dict[str, Any]) -> list[str]:
    for name in names:
        if name not in tools:
            raise InvalidRequestError(
                f"'tool_choice' names {shorten(name)}, which is not in 'tools'",
                param="tool_choice",
            )
    return names
