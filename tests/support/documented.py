"""The OpenAPI document of a running gateway, and whether values fit what it says."""

from typing import Any

import jsonschema

from support.running_gateway import Running


async def document(running: Running) -> dict[str, Any]:
    return dict((await running.http.get("/openapi.json")).json())


def content(operation: dict[str, Any], status: str = "200") -> dict[str, Any]:
    return dict(operation["responses"][status]["content"])


def check(found: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """Validate a value, and that no object has a field that its schema does not name."""
    schemas = {
        name: {"additionalProperties": False, **model}
        for name, model in found["components"]["schemas"].items()
    }
    jsonschema.validate(value, {**schema, "components": {"schemas": schemas}})
