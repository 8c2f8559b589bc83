"""Where in a JSON schema that is which llguidance refuses, and how to say it to a client.

llguidance says what it does not do, and rarely where. The schemas inside are tried one by one, from
the outside in, as long as one of them fails alone for the same reason.
"""

import re
import time
from typing import Any
from urllib.parse import quote

import orjson

from pagoda_gateway.errors import shorten
from pagoda_gateway.text.schemas.parts import at, schemas_directly_in, target_of
from pagoda_gateway.text.schemas.patterns import rust_pattern
from pagoda_runtime.grammar import GrammarCompiler

_ROOT = "/$defs/root"
_KEYS = re.compile(r"Unimplemented keys: (\[.*\])")
_UNSATISFIABLE = "Unsatisfiable schema: "
_OF_PATTERNS = ("regex parse error", "lookarounds not supported", "patternProperty regexes")
_OF_COSTS = "fuel exhausted"
_COSTLY = ("multipleOf", "pattern", "patternProperties", "maxLength", "minLength")


def fault_of(
    compiler: GrammarCompiler, schema: dict[str, Any], written: dict[str, Any], *, deadline: float
) -> str:
    """Return what llguidance does not take of a schema, and where; empty: nothing.

    Args:
        compiler: of any tokenizer.
        schema: `enforceable`.
        written: as the client wrote it.
        deadline: of `time.monotonic`; then the place is the closest that was found.
    """
    fault = compiler.fault(_grammar(schema))
    if not fault:
        return ""
    fault, place, part = _innermost(compiler, schema, fault, deadline)
    return _described(fault, *_as_written(place, part, written))


def _innermost(
    compiler: GrammarCompiler, schema: dict[str, Any], fault: str, deadline: float
) -> tuple[str, str, dict[str, Any]]:
    """Return a fault, and pointer and schema of what has it while no part of that has it too."""
    moved = _moved(schema)
    options = {key: value for key, value in schema.items() if key in ("$schema", "x-guidance")}
    place, part = "", schema
    seen = {id(schema)}
    waiting = schemas_directly_in(schema, schema, "")
    while waiting:
        inner_place, inner = waiting.pop(0)
        is_known = not seen.isdisjoint((id(inner), id(target_of(schema, inner))))
        if is_known or time.monotonic() > deadline:
            continue
        seen.add(id(inner))
        reference = "#" + quote(_ROOT + inner_place)
        alone = {"$defs": {"root": moved}, "$ref": reference, **options}
        inner_fault = compiler.fault(_grammar(alone)).replace(_ROOT, "")
        if inner_fault == fault or (
            inner_fault.startswith(_UNSATISFIABLE)
            and fault.startswith(f"{_UNSATISFIABLE}required property {_last_key(inner_place)!r}")
        ):
            fault, place, part = inner_fault, inner_place, inner
            waiting = schemas_directly_in(schema, inner, inner_place)
    return fault, place, part


def _last_key(place: str) -> str:
    return place.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def _moved(value: Any) -> Any:
    """Return a copy of a schema whose references hold at `_ROOT`."""
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(item) for key, item in value.items() if key != "$schema"}
    pointer = moved.get("$ref")
    if isinstance(pointer, str) and pointer.startswith("#") and pointer[1:2] in ("", "/"):
        moved["$ref"] = "#" + _ROOT + pointer[1:]
    return moved


def _as_written(place: str, part: dict[str, Any], written: Any) -> tuple[str, dict[str, Any]]:
    """Return where a part is in the schema before it was rewritten, and what it was there."""
    keys = place.split("/")
    for index, key in enumerate(keys[1:], 1):
        name = key.replace("~1", "/").replace("~0", "~")
        if name == "anyOf" and isinstance(written, dict) and "anyOf" not in written:
            name = keys[index] = "oneOf"
        if isinstance(written, list):
            written = written[int(name)] if int(name) < len(written) else None
            continue
        inner = written.get(name) if isinstance(written, dict) else None
        if inner is None and keys[index - 1] == "patternProperties" and written:
            name = next((one for one in written if rust_pattern(one) == name), name)
            keys[index] = name.replace("~", "~0").replace("/", "~1")
            inner = written.get(name)
        written = inner
    return "/".join(keys), written if isinstance(written, dict) else part


def _grammar(schema: dict[str, Any]) -> str:
    return orjson.dumps({"grammars": [{"json_schema": schema}]}).decode()


def _described(fault: str, place: str, part: dict[str, Any]) -> str:
    """Return a sentence with keyword and place."""
    where = at(place)
    if keys := _KEYS.match(fault):
        names = ", ".join(f"'{key}'" for key in orjson.loads(keys[1]))
        return f"{names} {where} cannot be enforced; leave it out, or say it in other words"
    if fault.startswith("oneOf"):
        return (
            f"'oneOf' {where} cannot be enforced: two of its schemas may hold at once, as far as "
            "can be seen; write 'anyOf', or give each another type, or another constant in a "
            "required property"
        )
    if fault.startswith(_OF_PATTERNS):
        why = fault.removeprefix("regex parse error: ")
        for keyword in ("pattern", "patternProperties"):
            if keyword in part:
                value = part[keyword]
                shown = value if isinstance(value, str) else list(value)
                return f"'{keyword}' {where} is {shorten(shown)}: {why}"
    costly = ", ".join(f"'{keyword}'" for keyword in _COSTLY if keyword in part)
    if costly and fault.startswith(_OF_COSTS):
        return f"{costly} {where} would take too long to enforce; make it smaller"
    if fault.startswith(_UNSATISFIABLE):
        return f"no value is valid under the schema {where}: {fault.partition(': ')[2]}"
    if "$ref" in part and fault.startswith(("Pointer", "Invalid URI")):
        return f"'$ref' {where} is {shorten(part['$ref'])}: {fault}"
    if "$schema" in part and fault.startswith("Resource"):
        return f"'$schema' {where} is {shorten(part['$schema'])}, which is no known dialect"
    return f"the schema {where}: {fault}"
