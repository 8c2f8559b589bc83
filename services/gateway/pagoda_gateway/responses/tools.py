"""Tools of a response: functions, alone or in namespaces, and searches, which nobody here runs.

A tool of free text is a function of one text, see `custom_tools.py`. A model knows a function of a
namespace by both names, as `namespace__function`; clients get them apart, as OpenAI's have them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError, joined, shorten
from pagoda_gateway.openai.schemas.base import MAX_TOOLS, Items, RequestModel
from pagoda_gateway.openai.schemas.custom_tools import CUSTOM, faults
from pagoda_gateway.openai.schemas.tools import (
    MAX_NAME_CHARS,
    OTHER_KIND,
    custom_tool,
    function_tool,
)

NAMESPACE = "namespace"
SEARCH = "web_search"
SEARCHES = (SEARCH, "tool_search")  # and what begins so: clients offer them unasked


class FunctionTool(RequestModel):
    """A function that the client runs, or a tool of free text, whose text may have a `format`."""

    kinds: ClassVar[tuple[str, ...]] = ("function", CUSTOM)

    type: str
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None

    @field_validator("format")
    @classmethod
    def _check_format(
        cls, value: dict[str, Any] | None, info: ValidationInfo
    ) -> dict[str, Any] | None:
        if info.data.get("type") == CUSTOM and faults({"format": _chat_format(value)}):
            raise InvalidRequestError(
                f'is {shorten(value)}; it must be {{"type": "text"}} or {{"type": "grammar", '
                '"syntax": "lark" or "regex", "definition": "..."}'
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            return value
        # Other fields of other kinds are not ours to check.
        if SEARCH in cls.kinds and kind.startswith(SEARCHES):
            return {"type": SEARCH, "name": SEARCH}
        if kind in cls.kinds:
            return value
        raise UnsupportedFieldError(f"has type {shorten(kind)}: {OTHER_KIND}")


class OfferedTool(FunctionTool):
    """A tool, a namespace that has `tools`, or a search, which is left out."""

    kinds: ClassVar[tuple[str, ...]] = (*FunctionTool.kinds, NAMESPACE, SEARCH)

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
        if tool.type == CUSTOM:
            form = _chat_format(tool.format)
            return custom_tool(self.name, description=tool.description, format=form)
        return function_tool(
            self.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )


def known_name(namespace: str | None, name: str) -> str:
    """Return the name by which a model knows a function."""
    return f"{namespace}__{name}" if namespace else name


def functions(tools: Sequence[OfferedTool] | None) -> list[Function]:
    """Return all functions that a request offers."""
    return list(_functions(tools or ()))


def namespaced(tools: Sequence[OfferedTool] | None) -> dict[str, dict[str, str]]:
    """Return what a call says of functions of namespaces, by the names that a model knows."""
    return {
        f.name: {"namespace": f.namespace, "name": f.tool.name}
        for f in functions(tools)
        if f.namespace is not None
    }


def shown(tools: Sequence[OfferedTool] | None) -> list[dict[str, Any]]:
    """Return the tools that a model is offered, as a response repeats them."""
    return [_shown(tool) for tool in tools or () if tool.type != SEARCH]


def left_out(tools: Sequence[OfferedTool] | None) -> tuple[str, ...]:
    """Return the places of tools that no model is offered."""
    return tuple(f"tools[{i}]" for i, tool in enumerate(tools or ()) if tool.type == SEARCH)


def check_known_names(tools: Sequence[OfferedTool] | None) -> None:
    """Check the names that a model would know.

    Raises:
        InvalidRequestError: some are too long, or several functions' own; names each. Or they are
            too many.
    """
    offered = functions(tools)
    if len(offered) > MAX_TOOLS:
        why = f"'tools' has {len(offered)} functions; the limit is {MAX_TOOLS}"
        raise InvalidRequestError(why, param="tools")
    seen: set[str] = set()
    errors = []
    for function in offered:
        where, name = f"{function.place}.name", shorten(function.tool.name)
        if len(function.name) > MAX_NAME_CHARS:
            why = f"'{where}' is {name}: with its namespace, and __ between them, it has "
            why += f"{len(function.name)} characters; the limit is {MAX_NAME_CHARS}"
            errors.append(InvalidRequestError(why, param=where))
        elif function.name in seen:
            why = f"'{where}' is {name}; it must be there only once"
            errors.append(InvalidRequestError(why, param=where))
        seen.add(function.name)
    if errors:
        raise joined(errors)


def chat_choice(choice: Any, tools: Sequence[OfferedTool] | None) -> Any:
    """Return a `tool_choice` as chat has it; what is none stays as it is.

    Raises:
        InvalidRequestError: it names a function of several namespaces.
    """
    match choice:
        case "auto":
            return None
        case {"type": "function" | "custom" as kind, "name": str()}:
            return {"type": kind, kind: {"name": _Chosen(tools).name_of(choice)}}
        case {"type": "allowed_tools", "mode": mode, "tools": [*allowed]}:
            chosen = _Chosen(tools)
            named = [
                {**tool, "name": chosen.name_of(tool)} if _has_name(tool) else tool
                for tool in allowed
                if not _is_search(tool)
            ]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
    return choice


class _Chosen:
    """Functions by what clients call them in a choice."""

    def __init__(self, tools: Sequence[OfferedTool] | None) -> None:
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        for function in functions(tools):
            self._known[function.tool.name].add(function.name)

    def name_of(self, choice: dict[str, Any]) -> str:
        """Return the name that a model knows; of a function that is not offered, the client's."""
        name: str = choice["name"]
        namespace = choice.get("namespace")
        if isinstance(namespace, str):
            return known_name(namespace, name)
        known = self._known.get(name, {name})
        if name in known or len(known) == 1:
            return name if name in known else next(iter(known))
        raise InvalidRequestError(
            f"'tool_choice' names {shorten(name)}, which several namespaces have; say which one in "
            "'namespace' beside it",
            param="tool_choice",
        )


def _chat_format(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the format of a tool's text as chat has it: a grammar's words are a level below."""
    if value is None or value.get("type") != "grammar":
        return value
    return {"type": "grammar", "grammar": value}


def _shown(tool: FunctionTool) -> dict[str, Any]:
    values = tool.model_dump(exclude={"tools"})
    for name in ("parameters", "strict") if tool.type == CUSTOM else ("format",):
        del values[name]
    if isinstance(tool, OfferedTool) and tool.type == NAMESPACE:
        values["tools"] = [_shown(inner) for inner in tool.tools or ()]
    return values


def _has_name(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str)


def _is_search(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind.startswith(SEARCHES)


def _functions(tools: Sequence[OfferedTool]) -> Iterator[Function]:
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type == NAMESPACE:
            for inner, function in enumerate(tool.tools or ()):
                yield Function(f"{place}.tools[{inner}]", tool.name, function)
        elif tool.type != SEARCH:
            yield Function(place, None, tool)
