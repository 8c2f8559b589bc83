"""Functions whose arguments a grammar holds, each by its own schema where that can be.

A strict one has its schema enforced, or is refused. Of others clients expect no more than they get
with `tool_choice: auto`: where no grammar can hold the schema, any object will do.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_gateway.dialects import Tool
from pagoda_gateway.errors import InvalidRequestError, Problems, shorten
from pagoda_gateway.openai.schemas.tools import ToolUse
from pagoda_gateway.text.grammar_checker import Source
from pagoda_gateway.text.grammars import arguments_schema


@dataclass(frozen=True, slots=True)
class BoundTool:
    """One function.

    Attributes:
        place: of the tool in the body.
        source: of its arguments' rules.
        is_strict: its schema must be enforced.
        is_loose: its schema is not.
    """

    name: str
    place: str
    source: Source
    is_strict: bool
    is_loose: bool = False

    @classmethod
    def of(cls, tool: dict[str, Any], place: str) -> "BoundTool":
        """Return a tool of a checked body.

        Raises:
            InvalidRequestError: it is strict, and its schema cannot be enforced.
        """
        function = tool["function"]
        is_strict = function.get("strict") is True
        try:
            source = _source(function["name"], place, function.get("parameters"))
        except InvalidRequestError as error:
            if is_strict:
                message = Source("tools", {}, _words(function["name"], place)).error(str(error))
                raise InvalidRequestError(message, param="tools") from error
            return cls.loose(function["name"], place)
        return cls(function["name"], place, source, is_strict)

    @classmethod
    def loose(cls, name: str, place: str) -> "BoundTool":
        """Return a function that takes any object."""
        return cls(name, place, _source(name, place, None), is_strict=False, is_loose=True)

    @property
    def tool(self) -> Tool:
        """The function as grammars take it."""
        return Tool(self.name, self.source.rules["json_schema"])


def bound_tools(use: ToolUse) -> list[BoundTool]:
    """Return the functions that may be called.

    Raises:
        InvalidRequestError: names every strict one whose schema cannot be enforced.
    """
    place_of = {id(t): place for t, place in zip(use.offered or (), use.all_places, strict=True)}
    tools: list[BoundTool] = []
    problems = Problems()
    for tool in use.callable:
        with problems:
            tools.append(BoundTool.of(tool, place_of[id(tool)]))
    problems.raise_all()
    return tools


def loosened(tools: Sequence[BoundTool], at_fault: Collection[int]) -> list[BoundTool] | None:
    """Return the functions without the schemas of those at fault, which has their indices.

    None: it would not help, as one is strict, or what is at fault is no function.
    """
    if not at_fault or any(not 0 <= index < len(tools) for index in at_fault):
        return None
    if any(tools[index].is_strict for index in at_fault):
        return None
    return [
        BoundTool.loose(tool.name, tool.place) if index in at_fault else tool
        for index, tool in enumerate(tools)
    ]


def _source(name: str, place: str, parameters: dict[str, Any] | None) -> Source:
    rules = {"json_schema": arguments_schema(parameters)}
    return Source("tools", rules, _words(name, place), parameters or {})


def _words(name: str, place: str) -> str:
    return f"the parameters of {shorten(name)} ({place})"
