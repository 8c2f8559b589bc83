"""Objects that list their properties and say no more of them get no others.

Most schemas come from classes, whose authors never thought of further properties; a model that may
write some goes on and on. A value of the closed schema is one of the open schema, so nothing that
a client relies on is lost. `additionalProperties: true` keeps an object open.
"""

from typing import Any

from pagoda_gateway.text.schemas.parts import schemas_in

_COMBINING = {
    "$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "contains", "dependencies",
    "dependentRequired", "dependentSchemas", "if", "not", "oneOf", "propertyNames",
    "unevaluatedProperties",
}  # fmt: skip
# What else says which properties, or which objects, there may be.
_BINDING = {"additionalProperties", "const", "enum", "maxProperties", "minProperties",
            "patternProperties"}  # fmt: skip
# Beside anything that says more of the same object closing would leave no room for that.
_ALONE = ({"$ref"}, {"anyOf"})
_BESIDE = _BINDING | {"properties", "required"}


def close_plain_objects(schema: dict[str, Any]) -> None:
    """Close the plain objects of a schema with local references, in place, if none are combined."""
    parts = [part for _, part in schemas_in(schema).values()]
    if any(_combines(part) for part in parts):
        return
    for part in parts:
        if part.get("properties") and is_plain(part):
            part["additionalProperties"] = False


def is_plain(schema: dict[str, Any]) -> bool:
    """Return whether `properties` are all that it says of its properties; it may be unchecked."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or schema.keys() & (_COMBINING | _BINDING):
        return False
    if not isinstance(required, list):
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def _combines(schema: dict[str, Any]) -> bool:
    """Return whether it may say of one value what two schemas say."""
    patterns = schema.get("patternProperties", {})
    if len(patterns) > 1 or (patterns and schema.get("properties")):  # both may have one name
        return True
    combining = schema.keys() & _COMBINING
    return bool(combining) and (combining not in _ALONE or bool(schema.keys() & _BESIDE))
