"""Tools that take free text, OpenAI's `custom`, as a model is offered them: functions of one text.

No chat template knows such a tool. A grammar in Lark is shown to the model and not enforced: it
says which texts there may be, and a model writes a text within JSON, where quotes and newlines are
escaped; a regular expression is enforced as the text's pattern.
"""

import re
from typing import Any

INPUT = "input"
CUSTOM = "custom"
LARK = "lark"
SYNTAXES = (LARK, "regex")
_TEXT = (str, type(None))


def function_of(custom: dict[str, Any]) -> dict[str, Any]:
    """Return the function that a tool's checked `custom` is offered as."""
    grammar = _grammar(custom)
    function = {"name": custom["name"], "parameters": _parameters(grammar)}
    if custom.get("description") is not None:
        function["description"] = custom["description"]
    if grammar is not None and grammar["syntax"] != LARK:
        function["strict"] = True
    return function


def is_free(custom: dict[str, Any]) -> bool:
    """Return whether a checked tool has a grammar that is not enforced."""
    grammar = _grammar(custom)
    return grammar is not None and grammar["syntax"] == LARK


def function_called(call: dict[str, Any]) -> dict[str, Any]:
    """Return the function of a checked call, or the one that its tool is offered as."""
    if call.get("type") != CUSTOM:
        function: dict[str, Any] = call["function"]
        return function
    called = call[CUSTOM]
    return {"name": called["name"], "arguments": {INPUT: called["input"]}}


def faults(custom: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """Return field, value and what it must be of all that is wrong beside the name."""
    found = []
    if not isinstance(custom.get("description"), _TEXT):
        found.append(("description", custom["description"], "text"))
    form = custom.get("format")
    match form:
        case None | {"type": "text"}:
            pass
        case {"type": "grammar", "grammar": {"syntax": "regex", "definition": str(pattern)}} if (
            not _is_whole(pattern)
        ):
            found.append(("format", form, "a regular expression with a bracket for each"))
        case {"type": "grammar", "grammar": {"syntax": syntax, "definition": str()}} if (
            syntax in SYNTAXES
        ):
            pass
        case _:
            must_be = '{"type": "text"} or {"type": "grammar", "grammar": {"syntax": "lark" or '
            found.append(("format", form, must_be + '"regex", "definition": "..."}}'))
    return found


_SIGNS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z)|[()]", re.DOTALL)


def _is_whole(pattern: str) -> bool:
    """Return whether each bracket has its own: `a)|(b` would end the group that it is put in."""
    depth = 0
    for sign in _SIGNS.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(sign[0], 0)
        if depth < 0:
            return False
    return depth == 0


def _grammar(custom: dict[str, Any]) -> dict[str, Any] | None:
    form = custom.get("format") or {}
    grammar: dict[str, Any] | None = form.get("grammar") if form.get("type") == "grammar" else None
    return grammar


def _parameters(grammar: dict[str, Any] | None) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    if grammar is not None:
        definition = grammar["definition"]
        if grammar["syntax"] == LARK:
            text["description"] = f"A text that this Lark grammar describes:\n{definition}"
        else:
            text["pattern"] = f"^(?:{definition})$"
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
