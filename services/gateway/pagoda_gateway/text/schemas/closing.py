"""Objects that list their properties and say no more of them get no others.

Most schemas come from classes, whose authors never thought of further properties; a model that may
write some goes on and on. A value of the closed schema is one of the open schema, so nothing that
a client relies on is lost. `additionalProperties: true` keeps an object open.
"""

from typing import Any

from pagoda_gateway.text.schemas.parts import schemas_in

# Of a schema with these keywords alone, `properties` are all that it says of its properties.
_PLAIN = {
    "type", "properties", "required", "title", "description", "$schema", "$defs", "definitions",
}  # fmt: skip
_NOTES = {
    "title", "description", "default", "examples", "deprecated", "$comment", "$schema", "$defs",
    "definitions",
}  # fmt: skip
# Beside anything else these say more of the same object, for which closing would leave no room.
_ALONE = ({"$ref"}, {"anyOf"})
_COMBINING = {
    "$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "contains", "dependencies",
    "dependentRequired", "dependentSchemas", "if", "not", "oneOf", "propertyNames",
    "unevaluatedProperties",
}  # fmt: skip


def close_plain_objects(schema: dict[str, Any]) -> None:
    """Close the plain objects of a checked schema, in place, unless it combines schemas."""
    parts = [part for _, part in schemas_in(schema).values()]
    if any(_combines(part) for part in parts):
        return
    for part in parts:
        if part.get("properties") and is_plain(part):
            part["additionalProperties"] = False


def is_plain(schema: dict[str, Any]) -> bool:
    """Return whether `properties` are all that it says of its properties; it may be unchecked."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not schema.keys() <= _PLAIN:
        return False
    if not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def _combines(schema: dict[str, Any]) -> bool:
    combining = schema.keys() & _COMBINING
    return bool(combining) and (combining not in _ALONE or not schema.keys() - combining <= _NOTES)
