"""Tools of a response: functions, alone or in namespaces, and searches, which nobody here runs.

A model knows a function of a namespace by both names, as `namespace__function`; clients get them
apart, as OpenAI's have them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, model_validator

from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError, joined, shorten
from pagoda_gateway.openai.schemas.base import MAX_TOOLS, Items, RequestModel
from pagoda_gateway.openai.schemas.tools import MAX_NAME_CHARS, function_tool, other_kind

NAMESPACE = "namespace"
SEARCHES = "web_search"  # and what begins so: a model may search, or not; clients offer it unasked


class FunctionTool(RequestModel):
    """A function that the client runs."""

    kinds: ClassVar[tuple[str, ...]] = ("function",)

    type: str
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            return value
        # Other fields of other kinds are not ours to check.
        if SEARCHES in cls.kinds and kind.startswith(SEARCHES):
            return {"type": SEARCHES, "name": SEARCHES}
        if kind in cls.kinds:
            return value
        raise UnsupportedFieldError(f"has type {shorten(kind)}: {other_kind(kind)}")


class OfferedTool(FunctionTool):
    """A function, a namespace that has `tools`, or a web search, which is left out."""

    kinds: ClassVar[tuple[str, ...]] = ("function", NAMESPACE, SEARCHES)

    tools: Items[FunctionTool] | None = Field(None, max_length=MAX_TOOLS)

    @model_validator(mode="after")
    def _check_tools(self) -> "OfferedTool":
        if self.type == NAMESPACE and not self.tools:
            raise InvalidRequestError("has no functions: a namespace needs some", param=".tools")
        return self


@dataclass(frozen=True, slots=True)
class Function:
    """A function as a model is offered it.

    Attributes:
        place: in the request.
        namespace: None outside of one.
        tool: as the client described it.
    """

    place: str
    namespace: str | None
    tool: FunctionTool

    @property
    def name(self) -> str:
        """The name that the model knows."""
        return known_name(self.namespace, self.tool.name)

    @property
    def in_chat(self) -> dict[str, Any]:
        """The tool as chat has it."""
        tool = self.tool
        return function_tool(
            self.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )


def known_name(namespace: str | None, name: str) -> str:
    """Return the name by which a model knows a function."""
    return name if namespace is None else f"{namespace}__{name}"


def functions(tools: Sequence[OfferedTool] | None) -> list[Function]:
    """Return all functions that a request offers."""
    return list(_functions(tools or ()))


def namespaced(tools: Sequence[OfferedTool] | None) -> dict[str, Function]:
    """Return functions of namespaces by the names that a model knows."""
    return {f.name: f for f in functions(tools) if f.namespace is not None}


def shown(tools: Sequence[OfferedTool] | None) -> list[dict[str, Any]]:
    """Return the tools that a model is offered, as a response repeats them."""
    return [
        tool.model_dump(exclude=None if tool.type == NAMESPACE else {"tools"})
        for tool in tools or ()
        if tool.type != SEARCHES
    ]


def left_out(tools: Sequence[OfferedTool] | None) -> tuple[str, ...]:
    """Return the places of tools that no model is offered."""
    return tuple(f"tools[{i}]" for i, tool in enumerate(tools or ()) if tool.type == SEARCHES)


def check_known_names(tools: Sequence[OfferedTool] | None) -> None:
    """Raise InvalidRequestError if a model would know functions by one name; names each."""
    seen: set[str] = set()
    errors = []
    for function in functions(tools):
        if function.name in seen:
            where = f"{function.place}.name"
            why = f"'{where}' is {shorten(function.tool.name)}; it must be there only once"
            errors.append(InvalidRequestError(why, param=where))
        seen.add(function.name)
    if errors:
        raise joined(errors)


def chat_choice(choice: Any, tools: Sequence[OfferedTool] | None) -> Any:
    """Return a `tool_choice` as chat has it; what is none stays as it is."""
    match choice:
        case "auto":
            return None
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": _chosen(name, tools)}}
        case {"type": "allowed_tools", "mode": mode, "tools": [*allowed]}:
            named = [_allowed(tool, tools) for tool in allowed]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
    return choice


def _functions(tools: Sequence[OfferedTool]) -> Iterator[Function]:
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type == NAMESPACE:
            for inner, function in enumerate(tool.tools or ()):
                yield Function(f"{place}.tools[{inner}]", tool.name, function)
        elif tool.type != SEARCHES:
            yield Function(place, None, tool)


def _chosen(name: str, tools: Sequence[OfferedTool] | None) -> str:
    """Return the name that a model knows of what a client calls `name`, if there is only one."""
    known = [f.name for f in functions(tools) if name in (f.name, f.tool.name)]
    return known[0] if len(known) == 1 else name


def _allowed(tool: Any, tools: Sequence[OfferedTool] | None) -> Any:
    match tool:
        case {"name": str(name)}:
            return {**tool, "name": _chosen(name, tools)}
    return tool
