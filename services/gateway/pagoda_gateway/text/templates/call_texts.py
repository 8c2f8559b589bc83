"""Tools and calls as text, for templates that do not show them: in the form that answers have.

Hermes' form is that by which models are read whose templates show none. Others are for templates
that show some of their own. `pagoda_gateway.dialects` reads each of them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Function = Mapping[str, Any]
"""Of a call: its name and arguments, an object; of a tool: its name, description, parameters."""


class CallTexts(Protocol):
    """One form."""

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return what tools there are, and how one is called."""

    def calls(self, functions: Sequence[Function]) -> str:
        """Return an answer's calls."""


class HermesTexts:
    """`<tool_call>` around a JSON object."""

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return what tools there are, and how one is called."""
        lines = "\n".join(map(_json, tools))
        return (
            f"These functions can be called:\n<tools>\n{lines}\n</tools>\n"
            "A call is one JSON object within its tags:\n"
            '<tool_call>\n{"name": <function-name>, "arguments": <object>}\n</tool_call>'
        )

    def calls(self, functions: Sequence[Function]) -> str:
        """Return an answer's calls."""
        return "\n".join(f"<tool_call>\n{_json(f)}\n</tool_call>" for f in functions)


class DeepSeekTexts:
    """Marks around a name and JSON; instructions are those of V3.1's model card."""

    def __init__(self, *, fenced: bool) -> None:
        """`fenced`: JSON is a block of code, as V3 and R1 write it."""
        self._fenced = fenced

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return what tools there are, and how one is called."""
        functions = "\n\n".join(
            f"### {function['name']}\nDescription: {function.get('description') or ''}\n\n"
            f"Parameters: {_json(function.get('parameters') or {})}"
            for function in (tool["function"] for tool in tools)
        )
        example = self._calls(
            self._call("tool_call_name", "tool_call_arguments") + "{additional_tool_calls}"
        )
        return (
            f"## Tools\nYou have access to the following tools:\n\n{functions}\n\n"
            f"IMPORTANT: ALWAYS adhere to this exact format for tool use:\n{example}\n\n"
            "Where:\n- `tool_call_name` must be an exact match to one of the available tools\n"
            "- `tool_call_arguments` must be valid JSON that strictly follows the tool's "
            "Parameters Schema"
        )

    def calls(self, functions: Sequence[Function]) -> str:
        """Return an answer's calls."""
        between = "\n" if self._fenced else ""
        return self._calls(
            between.join(self._call(f["name"], _json(f["arguments"])) for f in functions)
        )

    def _calls(self, text: str) -> str:
        return f"<｜tool▁calls▁begin｜>{text}<｜tool▁calls▁end｜>"  # noqa: RUF001

    def _call(self, name: str, arguments: str) -> str:
        head, body = name, arguments
        if self._fenced:
            head, body = "function", f"{name}\n```json\n{arguments}\n```"
        return f"<｜tool▁call▁begin｜>{head}<｜tool▁sep｜>{body}<｜tool▁call▁end｜>"  # noqa: RUF001


class ListTexts:
    """Marks around a JSON list of calls, and others around one of tools."""

    def __init__(self, around_calls: tuple[str, str], around_tools: tuple[str, str]) -> None:
        """Take what stands before and after each."""
        self._calls = around_calls
        self._tools = around_tools

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return what tools there are, and how one is called."""
        before, after = self._tools
        return before + _json([tool["function"] for tool in tools]) + after

    def calls(self, functions: Sequence[Function]) -> str:
        """Return an answer's calls."""
        before, after = self._calls
        return before + _json(list(functions)) + after


HERMES = HermesTexts()
PHI = ListTexts(("<|tool_call|>", "<|/tool_call|>"), ("<|tool|>", "<|/tool|>"))
GRANITE = ListTexts(
    ("<|tool_call|>", ""),
    (
        "You have access to the following tools. When a tool is required to answer the user's "
        "query, respond only with <|tool_call|> followed by a JSON list of tools used.\n",
        "",
    ),
)
"""In the words of its own template, which says them where there is no system."""


def own_texts(source: str) -> CallTexts | None:
    """Return the form that a template shows some of; None: it shows none, or needs no help."""
    if ("<|tool|>" in source and "<|/tool|>" in source) or "<|/tool_call|>" in source:
        return PHI
    if "<|tool_call|>" in source:
        return GRANITE
    if "<｜tool▁call▁begin｜>" in source:  # noqa: RUF001
        return DeepSeekTexts(fenced="```json" in source)
    return None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
