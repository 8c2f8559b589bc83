"""Objects that list their properties get no others, where nothing else says more of them."""

from typing import Any

import pytest

from pagoda_gateway.text.grammars import enforceable

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
AGE = {"type": "object", "properties": {"age": {"type": "string"}}, "required": ["age"]}
CLOSED = {**NAME, "additionalProperties": False}


def enforced(schema: dict[str, Any]) -> dict[str, Any]:
    held = enforceable(schema)
    del held["x-guidance"]
    return held


def kind(name: str, **values: Any) -> dict[str, Any]:
    """Return a class that a union of classes knows by a constant."""
    properties = {"kind": {"const": name}, "size": {"type": "integer"}}
    return {"type": "object", "properties": properties, "required": ["kind", "size"], **values}


def union(**values: Any) -> dict[str, Any]:
    """Return a union of such classes, as pydantic writes it with a discriminator."""
    members = {"Cat": kind("cat", **values), "Dog": kind("dog", **values)}
    refs = {name: f"#/$defs/{name}" for name in members}
    tell = {"propertyName": "kind", "mapping": {name.lower(): ref for name, ref in refs.items()}}
    one_of = [{"$ref": ref} for ref in refs.values()]
    return {"$defs": members, "type": "array", "items": {"oneOf": one_of, "discriminator": tell}}


def of_class(inner: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a class with another one in a list, as pydantic writes it."""
    people = {"type": "array", "items": {"$ref": "#/$defs/Person"}}
    return {"type": "object", "properties": {"people": people}, "$defs": {"Person": inner}}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (NAME, CLOSED),
        (of_class(NAME), {**of_class(CLOSED), "additionalProperties": False}),
        ({"type": "array", "items": NAME}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [NAME, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"additionalProperties": NAME}, {"additionalProperties": CLOSED}),
        ({**NAME, "examples": [{"name": "x"}], "x-order": 1}, None),
        ({"patternProperties": {"^x": NAME}}, {"patternProperties": {"^x": CLOSED}}),
        (
            {"$defs": {"x": NAME}, "$ref": "#/$defs/x", "type": "object", "readOnly": True},
            {"$defs": {"x": CLOSED}, "$ref": "#/$defs/x", "type": "object", "readOnly": True},
        ),
    ],
)
def test_plain_objects_are_closed(schema: dict[str, Any], wanted: dict[str, Any] | None) -> None:
    assert enforced(schema) == (wanted or {**schema, "additionalProperties": False})


def test_members_of_a_union_that_exclude_each_other_are_closed() -> None:
    wanted = union(additionalProperties=False)
    wanted["items"]["anyOf"] = wanted["items"].pop("oneOf")
    assert enforced(union()) == wanted


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"oneOf": [NAME, AGE]},  # one may have both
        {"type": "object", "properties": {}},
        {**NAME, "additionalProperties": True},
        {**NAME, "additionalProperties": {"type": "integer"}},
        {**NAME, "minProperties": 2},
        {**NAME, "required": ["name", "age"]},
        {"allOf": [NAME, {"type": "object", "properties": {"age": {"type": "integer"}}}]},
        {**NAME, "anyOf": [{"type": "object", "properties": {"age": {"type": "integer"}}}]},
        {"$defs": {"x": NAME}, "$ref": "#/$defs/x", "required": ["age"]},
        {"$defs": {"x": NAME}, "$ref": "#/$defs/x", "maxProperties": 2},
        {"properties": {"a": NAME}, "patternProperties": {"^a": AGE}},
        {"patternProperties": {"^a": NAME, "^(a)": AGE}},
        {"enum": [{"properties": {"a": 1}}]},
    ],
)
def test_what_says_more_stays_open(schema: dict[str, Any]) -> None:
    assert enforced(schema) == schema


def test_a_property_may_have_a_keywords_name() -> None:
    schema = {"type": "object", "properties": {"properties": NAME, "type": {"type": "string"}}}
    assert enforced(schema)["properties"] == {"properties": CLOSED, "type": {"type": "string"}}


def test_what_is_combined_behind_a_name_stays_open() -> None:
    combined = {"allOf": [{"$ref": "#/$defs/name"}, {"$ref": "#/$defs/age"}]}
    schema = {
        "$id": "http://chat.example/root",
        "type": "array",
        "items": {"$ref": "http://chat.example/root#/components/both"},
        "components": {"both": combined},
        "$defs": {"name": NAME, "age": AGE},
    }
    assert enforced(schema)["$defs"] == {"name": NAME, "age": AGE}
