"""Calls as grammar rules, in the Lark syntax of llguidance. Knows no family.

Every rule's name begins with `call`. A mark that is one token of the model is named by its id:
llguidance does not match such a token with its text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from pagoda_gateway.errors import InvalidRequestError, shorten


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: what a call says.
        arguments: JSON schema of an object: for grammars as llguidance takes it, for parsers as the
            client sent it.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that an answer must have, or may have.

    Attributes:
        tools: at least one.
        at_least_one: the answer is a call; else it may be text, or calls after text.
        parallel: it may be several calls.
        token_ids: those of the marks that are one token of the model.
    """

    tools: Sequence[Tool]
    at_least_one: bool
    parallel: bool
    token_ids: Mapping[str, int]


def json_text(value: object) -> str:
    """Return a text as rules name exactly this text, or a schema as their `%json` takes it."""
    return orjson.dumps(value).decode().replace("\x7f", r"\u007f")  # Lark reads no raw one


def check_names(tools: Sequence[Tool], end: re.Pattern[str], signs: str) -> None:
    """Refuse tools whose names hold what ends a name in a format: `end`, which `signs` names.

    Raises:
        InvalidRequestError: names the first of them.
    """
    for tool in tools:
        if end.search(tool.name):
            raise unwritable("a tool", tool.name, signs)


def unwritable(what: str, name: str, signs: str) -> InvalidRequestError:
    """Return the error of a name that a format cannot hold."""
    return InvalidRequestError(
        f"this model cannot call {what} named {shorten(name)}: its format ends a name at {signs}; "
        "use letters, digits, '_' and '-'",
        param="tools",
    )


def mark(text: str, token_ids: Mapping[str, int]) -> str:
    """Return the rules' words for a mark: its token, or its text if it is none."""
    return f"<[{token_ids[text]}]>" if text in token_ids else json_text(text)


def opening_rules(opening: str, calls: Calls) -> list[str]:
    """Return `call_open`, the mark; with text before it, and `call_text` alone, if there may be."""
    if calls.at_least_one:
        return [f"call_open: {mark(opening, calls.token_ids)}"]
    lazy = "" if opening in calls.token_ids else "[lazy]"  # text would run over a mark that is text
    return [
        f"call_open{lazy}: CALL_TEXT {mark(opening, calls.token_ids)}",
        "call_text: CALL_TEXT",
        "CALL_TEXT: /(?s:.*)/",
    ]


def object_rules(
    tools: Sequence[Tool], key: str, head: str = '"{"', name_key: str = "name"
) -> list[str]:
    """Return `call_object`: a tool's name and, under `key`, arguments that its schema allows.

    `head`: words before the name, with the object's bracket.
    """
    rules = ["call_object: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        name = json_text(f'"{name_key}": {json_text(tool.name)}, "{key}": ')
        rules.append(f'call_{i}: {head} {name} %json {json_text(tool.arguments)} "}}"')
    return rules


def bounded(name: str, budget: int | None) -> tuple[str, str]:
    """Return words for any text of at most `budget` tokens (None: of any length), and their rule.

    The rule, which has this name, begins on a line of its own; there may be none.
    """
    if budget is None:
        return "/(?s:.*)/", ""
    if budget == 0:
        return "", ""
    return name, f"\n{name}[max_tokens={budget}]: /(?s:.*)/"
