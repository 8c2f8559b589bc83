"""Grammars of whole outputs, written for llguidance; `grammar_checker` compiles them.

Knows languages and their limits. Knows no request's fields: who calls names them.
"""

import asyncio
import copy
import re
from typing import Any, TypeAlias

import orjson
from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.text.schemas.check import check_schema
from pagoda_gateway.text.schemas.closing import close_plain_objects, is_plain
from pagoda_gateway.text.schemas.formats import make_formats_exact
from pagoda_gateway.text.schemas.parts import refuse
from pagoda_gateway.text.schemas.references import make_references_local
from pagoda_gateway.text.schemas.rewriting import rewrite, take_disjoint_branches_as_any

MAX_GBNF_CHARS = 8192  # whose translation takes up to a second
_LARK = re.compile(
    r"^[ \t]*(%llguidance\b|[?!]{0,2}start(\.-?\d+)?[ \t]*(\[[^\]\n]*\][ \t]*)?:(?!:=))",
    re.MULTILINE,
)
# A word that Lark has a use for, and what is no word. What nothing closes goes to the end, and
# nothing is tried twice: else a few brackets would hold up the process.
_GBNF_START = re.compile(
    r"""(?P<other>"(?:\\.?|[^"\\])*+"?|\[(?:\\.?|[^\]\\])*+\]?|\#[^\n]*)"""
    r"""|(?<![\w-])start(?![\w-])""",
    re.IGNORECASE | re.DOTALL,
)

Rules: TypeAlias = dict[str, Any]
"""What one part of an output must be: an entry of llguidance's list of grammars, without name."""

JSON_LAYOUT = {
    # Compact, or one space as models write it: weak ones get lost in white space without bound.
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    # Without \uXXXX, in which a key could be written once more and be taken for another one.
    "json_allowed_escapes": 'nrbtf\\"',
}


def json_rules(schema: dict[str, Any]) -> Rules:
    """Return rules for JSON that `schema` allows.

    Raises:
        InvalidRequestError: they would allow more than it does.
    """
    return {"json_schema": enforceable(schema)}


def enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as llguidance holds it: no output that follows it is invalid under `schema`.

    Plain objects are closed, see `closing.py`.

    Raises:
        InvalidRequestError: there is no such schema; it would allow more.
    """
    check_schema(schema)
    schema = copy.deepcopy(schema)
    make_references_local(schema)
    take_disjoint_branches_as_any(schema)
    close_plain_objects(schema)
    rewrite(schema)
    make_formats_exact(schema)
    return {**schema, "x-guidance": JSON_LAYOUT}


def arguments_schema(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return the schema of a function's arguments, `enforceable`; None: any object.

    A function takes the arguments that it names: an object with none in `properties` is empty.
    Without a `type` they are an object, and so they are where an object is one of several types.

    Raises:
        InvalidRequestError: as `enforceable`; they cannot be an object.
    """
    schema = {"type": "object", **(parameters or {})}
    kinds = schema["type"]
    if kinds != "object":
        check_schema(schema)  # that these are types
        if "object" not in kinds:
            raise refuse("", "type", f"is {shorten(kinds)}; arguments are an object")
        schema["type"] = "object"
    if is_plain(schema):
        schema["additionalProperties"] = False
    return enforceable(schema)


def parse_schema(text: str) -> dict[str, Any]:
    """Return a JSON schema that came as text.

    Raises:
        InvalidRequestError: it is no JSON object.
    """
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"it is not valid JSON: {shorten(str(error))}") from error
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"it must be a JSON object, not {shorten(schema)}")
    return schema


def lark_rules(text: str) -> Rules:
    """Return rules in llguidance's Lark syntax, as they are."""
    return {"lark_grammar": text}


def regex_rules(pattern: str) -> Rules:
    """Return rules for text that `pattern` matches from end to end."""
    return lark_rules(f"start: /{regex_to_lark(pattern, use_ascii='dws')}/")


def choice_rules(choices: list[str]) -> Rules:
    """Return rules for one of these texts."""
    texts = (orjson.dumps(text).decode().replace("\x7f", r"\u007f") for text in choices)
    return lark_rules("start: " + " | ".join(texts))


async def grammar_rules(text: str) -> Rules:
    """Return rules for a grammar in Lark's or in GBNF syntax.

    Raises:
        InvalidRequestError: it is in neither, or GBNF that is too long to be translated.
    """
    if _LARK.search(text):
        return lark_rules(text)
    if len(text) > MAX_GBNF_CHARS:
        raise InvalidRequestError(
            f"it has {len(text)} characters; in GBNF the limit is {MAX_GBNF_CHARS}, Lark may have "
            "more"
        )
    try:
        return lark_rules(await asyncio.to_thread(lambda: gbnf_to_lark(_without_start(text))))
    except Exception as error:  # a small translator with errors of many kinds
        message = shorten(str(error), 500)
        raise InvalidRequestError(f"it is neither Lark nor GBNF: {message}") from error


def _without_start(gbnf: str) -> str:
    """Return GBNF none of whose rules is called as Lark's first one is, however it is spelled."""
    name, taken = "renamed", re.sub("[-_]", "", gbnf.lower())
    while name in taken:
        name += "x"
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return found["other"] or names.setdefault(found[0], f"{name}{len(names)}")

    return _GBNF_START.sub(renamed, gbnf)


def whole_grammar(
    text: Rules | None = None, *, calls: str = "", prefix: str = "", opening: str = ""
) -> str:
    """Return llguidance's text of a whole output: reasoning, then one of text and calls.

    Args:
        text: what the output's text must be.
        calls: Lark rules of one called `calls`; empty: there are none.
        prefix: Lark rules of one called `prefix`, which comes first; empty: nothing does.
        opening: words of a rule for what comes before the text; empty: nothing does.
    """
    answers = ["calls"] * bool(calls) + [f"{opening} @text"] * (text is not None)
    start = f"start: {'prefix' * bool(prefix)} ({' | '.join(answers)})"
    rules = [lark_rules("\n".join(part for part in (start, calls, prefix) if part))]
    if text is not None:
        rules.append({"name": "text", **text})
    return orjson.dumps({"grammars": rules}).decode()
