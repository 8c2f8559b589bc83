"""What the text of an output must be: `response_format`, `structured_outputs` and their like.

Whether a schema or a grammar can be followed is found out later, by compiling it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda_gateway.errors import InvalidRequestError, Problems, UnsupportedFieldError, shorten

MAX_CHOICES = 1024
KINDS = ("json", "json_object", "regex", "choice", "grammar")
GUIDED_FIELDS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
SGLANG_KINDS = {"regex": "regex", "ebnf": "grammar"}  # by its fields
RESPONSE_SCHEMA = "response_format.json_schema.schema"
IGNORED_OPTIONS = ("disable_any_whitespace", "disable_fallback")  # here it is as with them anyway
_DESCRIPTION = (
    ("name", str | None, "text"),
    ("description", str | None, "text"),
    ("strict", bool | None, "true or false"),
)
_OBJECT_SCHEMAS = ("schema", "value")  # of a json_object, as llama.cpp and TGI have them
FIELDS = ("response_format", "structured_outputs", *SGLANG_KINDS, *GUIDED_FIELDS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One of KINDS, its value, and the field that it comes from.

    `ignored` names what is beside it and binds nothing.
    """

    param: str
    kind: str
    value: Any
    ignored: tuple[str, ...] = ()


def wanted(name: str, value: Any) -> Wanted | None:
    """Return what one of FIELDS asks for; None: any text.

    Raises:
        InvalidRequestError: names the part of the field that is wrong.
    """
    if value is None or (name in SGLANG_KINDS and value == ""):
        return None
    if name == "response_format":
        return _response_format(value)
    if name == "structured_outputs":
        return _structured_outputs(value)
    return _checked(Wanted(name, SGLANG_KINDS.get(name) or name.removeprefix("guided_"), value))


def only_wanted(fields: Mapping[str, Any], *, schema_field: str) -> Wanted | None:
    """Return what the only one of FIELDS asks for that asks for anything.

    Beside `structured_outputs` its former names ask for nothing: some clients send both.

    Args:
        fields: of a body.
        schema_field: what a client calls RESPONSE_SCHEMA.

    Raises:
        InvalidRequestError: there are two.
    """
    sent = {name: fields[name] for name in FIELDS if fields.get(name) is not None}
    former = [name for name in GUIDED_FIELDS if name in sent and "structured_outputs" in sent]
    found = [
        replace(w, param=_sent_as(w.param, schema_field))
        for name in sent
        if name not in former and (w := wanted(name, sent[name])) is not None
    ]
    if len(found) > 1:
        names = " and ".join(f"'{w.param}'" for w in found)
        raise InvalidRequestError(f"{names} exclude each other; send one", param=found[1].param)
    if not found:
        return None
    return replace(found[0], ignored=(*found[0].ignored, *former))


def _sent_as(param: str, schema_field: str) -> str:
    """Return what a client calls a part of `response_format`; all else it calls by its name."""
    if param == RESPONSE_SCHEMA:
        return schema_field
    is_format = param == "response_format" and schema_field != RESPONSE_SCHEMA
    return schema_field.removesuffix(".schema") if is_format else param


def _response_format(value: dict[str, Any]) -> Wanted | None:
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        for name in _OBJECT_SCHEMAS:
            if value.get(name):
                return _checked(Wanted(f"response_format.{name}", "json", value[name]))
        return Wanted("response_format", "json_object", True)
    if kind != "json_schema":
        raise InvalidRequestError(
            f"'response_format.type' is {shorten(kind)}; it must be text, json_object or "
            "json_schema",
            param="response_format",
        )
    described = value.get("json_schema")
    if not isinstance(described, dict):
        described = {}
    found = _checked(Wanted(RESPONSE_SCHEMA, "json", described.get("schema")))
    problems = Problems()
    for name, kinds, must_be in _DESCRIPTION:
        if not isinstance(described.get(name), kinds):
            where = f"response_format.json_schema.{name}"
            with problems:
                raise InvalidRequestError(
                    f"'{where}' is {shorten(described[name])}; it must be {must_be}", param=where
                )
    problems.raise_all()
    return found


def _structured_outputs(value: dict[str, Any]) -> Wanted:
    fields = {name: v for name, v in value.items() if v is not None}
    ignored = [(name, fields.pop(name)) for name in IGNORED_OPTIONS if name in fields]
    for name, option in ignored:
        if not isinstance(option, bool):
            where = f"structured_outputs.{name}"
            raise InvalidRequestError(
                f"'{where}' is {shorten(option)}; it must be true or false", param=where
            )
    fields = {name: v for name, v in fields.items() if v is not False}
    unknown = sorted(fields.keys() - set(KINDS))
    if unknown:
        hint = "" if "whitespace_pattern" not in unknown else (
            "; JSON has one optional space behind , and : and no other white space"
        )  # fmt: skip
        raise UnsupportedFieldError(
            f"'structured_outputs' has {shorten(unknown)}; this server knows {', '.join(KINDS)}"
            f"{hint}",
            param="structured_outputs",
        )
    if not fields:
        raise InvalidRequestError(
            f"'structured_outputs' asks for nothing; it must have one of {', '.join(KINDS)}",
            param="structured_outputs",
        )
    if len(fields) > 1:
        raise InvalidRequestError(
            f"'structured_outputs' has {', '.join(fields)}; it must have one of them",
            param="structured_outputs",
        )
    names = tuple(f"structured_outputs.{name}" for name, _ in ignored)
    ((kind, chosen),) = fields.items()
    return _checked(Wanted(f"structured_outputs.{kind}", kind, chosen, names))


def _checked(found: Wanted) -> Wanted:
    param, value = found.param, found.value
    match found.kind, value:
        case ("json", dict()) | ("json" | "regex" | "grammar", str()) | ("json_object", True):
            return found
        case "choice", [*choices] if choices and all(isinstance(c, str) for c in choices):
            if len(choices) <= MAX_CHOICES:
                return found
            raise InvalidRequestError(
                f"'{param}' has {len(choices)} choices; the limit is {MAX_CHOICES}", param=param
            )
    must_be = {"json": "a JSON schema (an object)", "choice": "a list of texts"}
    raise InvalidRequestError(
        f"'{param}' must be {must_be.get(found.kind, 'text')}, not {shorten(value)}", param=param
    )
